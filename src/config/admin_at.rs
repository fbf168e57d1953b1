//! Where a running gateway's admin API is. The rest of the file may be broken: that is when one has to know.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::interpolate::interpolate;
use super::read;

/// Where `[admin]` listens, if it is nowhere said.
const DEFAULT_ADDRESS: &str = "127.0.0.1:9901";

/// What a client has to know of `[admin]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AdminAt {
    /// Where it listens, as written.
    pub address: String,
    /// The file of its token.
    pub token_file: Option<PathBuf>,
}

impl AdminAt {
    /// What the main file of a configuration and the environment say of it, whatever else is wrong there; `None`
    /// without the table. Values that are no texts count as not written.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn find(path: &Path, env: &BTreeMap<String, String>) -> io::Result<Option<Self>> {
        let text = read::text(path)?;
        let (whole, _) = DeTable::parse_recoverable(&text);
        // What a mistake has swallowed may be whole by itself.
        let section = section(&text);
        let (section, _) = DeTable::parse_recoverable(&section);
        let written =
            [&whole, &section]
                .into_iter()
                .find_map(|root| match value(root.get_ref(), "admin")? {
                    DeValue::Table(table) => Some(table),
                    _ => None,
                });
        let setting = |key: &str| {
            let variable = format!("TOLLGATE__ADMIN__{}", key.to_ascii_uppercase());
            let written = written.and_then(|table| match value(table, key)? {
                DeValue::String(text) => interpolate(text, &|name| env.get(name).cloned()).ok(),
                _ => None,
            });
            env.get(&variable).cloned().or(written)
        };
        let (address, token_file) = (setting("address"), setting("token_file"));
        if written.is_none() && address.is_none() && token_file.is_none() {
            return Ok(None);
        }
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        Ok(Some(Self {
            address: address.unwrap_or_else(|| DEFAULT_ADDRESS.to_owned()),
            token_file: token_file.map(|file| folder.join(file)),
        }))
    }
}

/// The lines from `[admin]` to the next table.
fn section(text: &str) -> String {
    let is_header = |line: &&str| line.trim_start().starts_with('[');
    let is_ours = |line: &&str| {
        let name = line.split('#').next().unwrap_or_default();
        name.split_whitespace().collect::<String>() == "[admin]"
    };
    let mut lines = text.lines().skip_while(|line| !is_ours(line));
    let header = lines.next().into_iter();
    let fields = lines.take_while(|line| !is_header(line));
    header.chain(fields).collect::<Vec<_>>().join("\n")
}

fn value<'t, 'i>(table: &'t DeTable<'i>, key: &str) -> Option<&'t DeValue<'i>> {
    table
        .iter()
        .find(|(known, _)| known.get_ref() == key)
        .map(|(_, value)| Spanned::get_ref(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_found_in_a_file_that_is_broken_elsewhere() {
        let file = std::env::temp_dir().join(format!("tollgate-admin-{}.toml", std::process::id()));
        let find = |text: &str, env: &[(&str, &str)]| {
            std::fs::write(&file, text).unwrap();
            let env = env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            AdminAt::find(&file, &env)
                .unwrap()
                .map(|at| (at.address, at.token_file))
        };
        let folder = std::env::temp_dir();
        let at = |address: &str, token: Option<&str>| {
            Some((address.to_owned(), token.map(|token| folder.join(token))))
        };
        let table = "[admin]\naddress = \"[::1]:1\"\ntoken_file = \"${DIR:-d}/t\"\n";
        for (text, env, expected) in [
            ("", &[] as &[_], None),
            ("[admin]\n", &[], at(DEFAULT_ADDRESS, None)),
            ("", &[("TOLLGATE__ADMIN__ADDRESS", "h:2")], at("h:2", None)),
            (table, &[], at("[::1]:1", Some("d/t"))),
            (
                table,
                &[("TOLLGATE__ADMIN__ADDRESS", "h:2"), ("DIR", "e")],
                at("h:2", Some("e/t")),
            ),
            (
                &format!("this is no TOML\n{table}"),
                &[],
                at("[::1]:1", Some("d/t")),
            ),
            (
                &format!("{table}[policies\nx = = 1\n"),
                &[],
                at("[::1]:1", Some("d/t")),
            ),
            (
                &format!("[policies.a]\nlimti = \"x\ny = \n{table}"),
                &[],
                at("[::1]:1", Some("d/t")),
            ),
        ] {
            assert_eq!(find(text, env), expected, "{text}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(AdminAt::find(&file, &BTreeMap::new()).is_err());
    }
}
