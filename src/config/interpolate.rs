//! `${VAR}`, `${VAR:-default}` and `$$` in values. Done after parsing, so that a variable cannot change the structure.

/// Where variables are looked up.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Why a text cannot be filled in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trouble {
    /// This variable is not set, and there is no default.
    Unset(String),
    /// `${` without `}`.
    Unclosed,
    /// What stands between the braces is no variable's name.
    NotAName(String),
}

/// Fills in variables. A `$` that begins neither `${` nor `$$` stands for itself.
pub(crate) fn interpolate(text: &str, lookup: Lookup<'_>) -> Result<String, Trouble> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            filled.push('$');
            rest = after;
        } else if let Some(after) = after.strip_prefix('{') {
            let (inside, after) = after.split_once('}').ok_or(Trouble::Unclosed)?;
            filled.push_str(&value(inside, lookup)?);
            rest = after;
        } else {
            filled.push('$');
            rest = after;
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

fn value(inside: &str, lookup: Lookup<'_>) -> Result<String, Trouble> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let mut letters = name.chars();
    let is_name = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(Trouble::NotAName(name.to_owned()));
    }
    // As in a shell, `:-` also stands in for a variable that is set to nothing.
    match (lookup(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(Trouble::Unset(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_filled_in() {
        for (text, expected) in [
            ("plain", "plain"),
            ("${A}", "one"),
            ("x${A}y${A}", "xoneyone"),
            ("${B:-two}", "two"),
            ("${B:-}", ""),
            ("${EMPTY:-two}", "two"),
            ("${EMPTY}", ""),
            ("$$", "$"),
            ("$${A}", "${A}"),
            ("5$ a $x", "5$ a $x"),
            ("${B:-a:-b}", "a:-b"),
            ("$", "$"),
        ] {
            assert_eq!(
                interpolate(text, &lookup).as_deref(),
                Ok(expected),
                "{text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_filled_in_is_refused() {
        for (text, trouble) in [
            ("${B}", Trouble::Unset("B".into())),
            ("${B", Trouble::Unclosed),
            ("${}", Trouble::NotAName(String::new())),
            ("${1A}", Trouble::NotAName("1A".into())),
            ("${a b:-c}", Trouble::NotAName("a b".into())),
        ] {
            assert_eq!(interpolate(text, &lookup), Err(trouble), "{text}");
        }
    }
}
