//! Which files a glob finds: `*` and `?` in the last part of the path, in the order of their names.

use std::path::{Path, PathBuf};

/// The files that `pattern` means, sorted. A glob may find none; a plain name is a file that must be there.
///
/// # Errors
///
/// Why the directory cannot be listed, in words.
pub(crate) fn files(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let name = pattern
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let directory = pattern.parent().unwrap_or_else(|| Path::new(""));
    if directory.to_string_lossy().contains(['*', '?']) {
        return Err(format!(
            "`{}` has a wildcard in a directory's name; only the file's name may have one",
            pattern.display()
        ));
    }
    let Some(name) = name.filter(|name| name.contains(['*', '?'])) else {
        return Ok(vec![pattern.to_path_buf()]);
    };
    let listed = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let entries = match std::fs::read_dir(listed) {
        Ok(entries) => entries,
        // An empty conf.d need not exist.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{} cannot be listed: {error}", listed.display())),
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        // As in a shell, a wildcard does not find what is hidden: editors' files, Kubernetes' `..data`.
        .filter(|file| !file.starts_with('.') && matches(&name, file))
        .map(|file| directory.join(file))
        .filter(|path| !path.is_dir())
        .collect();
    found.sort();
    Ok(found)
}

/// Whether `name` is what `glob` means. Linear but for the last star, which is tried again further on.
fn matches(glob: &str, name: &str) -> bool {
    let glob: Vec<char> = glob.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at_glob, mut at_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at_name < name.len() {
        match (glob.get(at_glob), name.get(at_name)) {
            (Some('*'), _) => {
                star = Some((at_glob, at_name));
                at_glob += 1;
            }
            (Some(wanted), Some(found)) if wanted == found || *wanted == '?' => {
                at_glob += 1;
                at_name += 1;
            }
            _ => match star {
                Some((star_glob, star_name)) => {
                    star = Some((star_glob, star_name + 1));
                    at_glob = star_glob + 1;
                    at_name = star_name + 1;
                }
                None => return false,
            },
        }
    }
    glob.iter().skip(at_glob).all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn globs_find_names() {
        for (glob, name, found) in [
            ("*.toml", "a.toml", true),
            ("*.toml", ".toml", true),
            ("*.toml", "a.toml.bak", false),
            ("a?.toml", "ab.toml", true),
            ("a?.toml", "a.toml", false),
            ("*a*b", "xaab", true),
            ("*a*b", "xaabc", false),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(glob, name), found, "{glob} {name}");
        }
    }
}
