//! What the files of a configuration hold, and how to notice without reading them that it may have changed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::load::{LoadOptions, load};
use super::read;

/// What the files hold that a configuration is read from, and how they looked just before.
#[derive(Clone, Debug)]
pub struct Fingerprint {
    /// A hash over the files and their names. Equal only if nothing has changed.
    pub content: [u8; 32],
    /// How the files looked before they were hashed: what changes later makes them look another way.
    pub look: Look,
}

/// How files look from outside: what a change of any of them changes, links on the way to it included.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Look(Vec<(PathBuf, Option<Seen>)>);

/// One file or directory, behind all links.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Seen {
    resolved: PathBuf,
    device_and_inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    /// Cannot be set back, as the time of a modification can.
    changed: (i64, i64),
}

impl Fingerprint {
    /// Of the configuration at `path`: the files that it is read from, those that its settings name, and the
    /// directories that it includes from. Reads them all.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let loaded = load(path, &LoadOptions::from_process());
        let look = Look::of(&[&*loaded.files, &*loaded.folders].concat());
        let mut hasher = blake3::Hasher::new();
        for file in &loaded.files {
            let name = file.as_os_str().as_encoded_bytes();
            // A file that cannot be read is one that is not there.
            let bytes = read::bytes(file).unwrap_or_default();
            for part in [name, &bytes] {
                hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
                hasher.update(part);
            }
        }
        Self {
            content: *hasher.finalize().as_bytes(),
            look,
        }
    }
}

impl Look {
    /// How these look now.
    #[must_use]
    pub fn of(places: &[PathBuf]) -> Self {
        let seen = |place: &PathBuf| (place.clone(), Seen::at(place));
        Self(places.iter().map(seen).collect())
    }

    /// How the same files look now. Opens none of them.
    #[must_use]
    pub fn again(&self) -> Self {
        let again = |(place, _): &(PathBuf, Option<Seen>)| (place.clone(), Seen::at(place));
        Self(self.0.iter().map(again).collect())
    }
}

impl Seen {
    /// None where nothing is, or nothing that may be seen.
    fn at(place: &Path) -> Option<Self> {
        let place = match place.as_os_str().is_empty() {
            true => Path::new("."),
            false => place,
        };
        let resolved = fs::canonicalize(place).ok()?;
        let found = fs::metadata(&resolved).ok()?;
        Some(Self {
            resolved,
            device_and_inode: (found.dev(), found.ino()),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    /// A folder of the test's own, gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("tollgate-fingerprint-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MAIN: &str = "include = [\"conf.d/*.toml\"]\n[store]\nkey_secret_file = \"secret\"\n\
                        [rejects.default]\nbody_file = { \"text/html\" = \"sorry.html\" }\n";

    #[test]
    fn whatever_changes_looks_another_way() {
        let folder = Folder::new("changes");
        let main = folder.write("tollgate.toml", MAIN);
        folder.write("secret", "a secret, long enough");
        folder.write("sorry.html", "sorry");
        folder.write("conf.d/a.toml", "");
        let mut last = Fingerprint::of(&main);
        let mut changed = |what: &str| {
            let look = last.look.again();
            let next = Fingerprint::of(&main);
            assert_ne!(look, last.look, "{what}");
            assert_ne!(next.content, last.content, "{what}");
            assert_eq!(next.look.again(), next.look, "{what}");
            last = next;
        };
        folder.write("conf.d/b.toml", "");
        changed("a new included file");
        folder.write("conf.d/b.toml", "[upstreams.a]\nbuiltin = \"echo\"\n");
        changed("an included file");
        fs::remove_file(folder.0.join("conf.d/b.toml")).unwrap();
        changed("an included file is gone");
        folder.write("secret", "a SECRET, long enough");
        changed("a secret of the same length");
        folder.write("sorry.html", "SORRY");
        changed("a body");
        let file = fs::File::options()
            .append(true)
            .open(folder.write("tollgate.toml", &MAIN.replace("secret\"", "SECRET\"")))
            .unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        changed("in place, with the time set back");
        folder.write("fresh", MAIN);
        fs::rename(folder.0.join("fresh"), &main).unwrap();
        changed("renamed over");
    }

    #[test]
    fn a_swapped_link_looks_another_way_and_an_untouched_one_does_not() {
        let folder = Folder::new("links");
        folder.write("v1/tollgate.toml", MAIN);
        folder.write("v2/tollgate.toml", &MAIN.replace("sorry", "SORRY"));
        symlink("v1", folder.0.join("..data")).unwrap();
        let main = folder.0.join("tollgate.toml");
        symlink("..data/tollgate.toml", &main).unwrap();
        let first = Fingerprint::of(&main);
        assert_eq!(first.look.again(), first.look);
        symlink("v2", folder.0.join("..new")).unwrap();
        fs::rename(folder.0.join("..new"), folder.0.join("..data")).unwrap();
        assert_ne!(first.look.again(), first.look);
        let second = Fingerprint::of(&main);
        assert_ne!(second.content, first.content);
        // Read, but not changed.
        fs::read(&main).unwrap();
        assert_eq!(second.look.again(), second.look);
    }

    #[test]
    fn a_file_that_comes_into_being_looks_another_way() {
        let folder = Folder::new("absent");
        let main = folder.0.join("tollgate.toml");
        let first = Fingerprint::of(&main);
        folder.write("tollgate.toml", "");
        assert_ne!(first.look.again(), first.look);
    }
}
