//! Any text as a configuration.

use std::path::Path;

use tollgate::config::error::{Code, Location, Severity};
use tollgate::config::{Effective, LoadOptions, Loaded, dump, load_text, summary};

const FILE: &str = "fuzz.toml";

/// Of what is missing altogether.
const UNWRITTEN: [Code; 1] = [Code::W211];

/// Every mistake stands somewhere in the text, and what is taken is written down as what means the same.
pub(super) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // That would read whatever files this machine has.
    if text.contains("include") {
        return;
    }
    let loaded = read(text);
    for diagnostic in &loaded.diagnostics {
        match &diagnostic.location {
            Some(location) => within(text, location),
            // What nobody wrote stands nowhere.
            None => assert!(UNWRITTEN.contains(&diagnostic.code), "{diagnostic}"),
        }
        if let Some((location, _)) = &diagnostic.also {
            within(text, location);
        }
        assert!(diagnostic.summary().contains(diagnostic.code.as_str()));
        assert!(diagnostic.to_string().contains(&diagnostic.message));
        assert_eq!(diagnostic.to_json()["code"], diagnostic.code.as_str());
    }
    let wrong = loaded
        .diagnostics
        .iter()
        .any(|diagnostic| diagnostic.severity() == Severity::Error);
    assert_eq!(loaded.has_errors(), wrong, "{:?}", loaded.diagnostics);
    let Some(config) = &loaded.config else {
        return;
    };
    assert!(summary(&loaded).is_some());
    let written = dump(&loaded).expect("what is taken can be written down");
    let again = read(&written);
    let Some(same) = &again.config else {
        panic!("{written}\nis refused: {:#?}", again.diagnostics);
    };
    assert_eq!(dump(&again).as_ref(), Some(&written));
    assert_eq!(Effective::of(&again), Effective::of(&loaded));
    // What is masked is another value.
    if !written.contains("***") {
        assert_eq!(format!("{same:?}"), format!("{config:?}"), "{written}");
    }
}

fn read(text: &str) -> Loaded {
    let options = LoadOptions {
        io: false,
        env: [("SET".to_owned(), "10/s".to_owned())].into(),
    };
    load_text(Path::new(FILE), text, &options)
}

fn within(text: &str, location: &Location) {
    assert_eq!(location.file, FILE);
    let (Some(line), Some(column)) = (location.line, location.column) else {
        panic!("no line: {location:?}");
    };
    let Some(found) = text.split('\n').nth(line - 1) else {
        panic!("no such line: {location:?}");
    };
    assert!(
        (1..=found.chars().count() + 1).contains(&column),
        "{location:?} in {found:?}"
    );
    let excerpt = location.excerpt.as_ref().expect("a line has a text");
    assert!(!excerpt.text.contains('\n') && excerpt.width > 0);
}
