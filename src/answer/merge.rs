//! Our fields beside those that the upstream sent.
//!
//! Theirs are never loosened: kept byte for byte, ours behind them. Only what no client could read is dropped.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use sfv::{BareItem, List, ListEntry, Parser};

use super::fields::{self, Item, LEGACY, RATELIMIT, RATELIMIT_POLICY};
use super::{Legacy, Settings, UpstreamFields, cors};

/// Adds the fields of `items` to an upstream's answer. Returns whether malformed fields of theirs were dropped.
pub(super) fn put(
    settings: &Settings,
    items: &[Item<'_>],
    redirect: bool,
    now_epoch_s: u64,
    headers: &mut HeaderMap,
) -> bool {
    let mut malformed = false;
    if settings.ratelimit {
        malformed = put_ratelimit(settings, items, redirect, headers);
    }
    if settings.legacy != Legacy::None {
        put_legacy(settings, items, now_epoch_s, headers);
    }
    cors::expose_added(headers);
    malformed
}

fn put_ratelimit(
    settings: &Settings,
    items: &[Item<'_>],
    redirect: bool,
    headers: &mut HeaderMap,
) -> bool {
    let theirs = headers.contains_key(RATELIMIT) || headers.contains_key(RATELIMIT_POLICY);
    let mut malformed = false;
    if theirs {
        match settings.upstream_ratelimit {
            UpstreamFields::Pass => return false,
            UpstreamFields::Replace => remove(headers, &[RATELIMIT, RATELIMIT_POLICY]),
            UpstreamFields::Merge => {
                return merge(settings, items, redirect, headers, &mut malformed);
            }
        }
    }
    set(
        headers,
        RATELIMIT_POLICY,
        None,
        fields::policy_field(settings, items, None),
    );
    // A client may wait before it follows a redirect when it reads that little is left.
    if !redirect {
        set(
            headers,
            RATELIMIT,
            None,
            fields::limit_field(settings, items, None),
        );
    }
    malformed
}

fn merge(
    settings: &Settings,
    items: &[Item<'_>],
    redirect: bool,
    headers: &mut HeaderMap,
    malformed: &mut bool,
) -> bool {
    let mut taken = Taken::default();
    let policies = kept(headers, RATELIMIT_POLICY, &mut taken, malformed);
    let limits = kept(headers, RATELIMIT, &mut taken, malformed);
    let names = taken.names_for(items, settings.partition_key);
    let rename = |item: &Item<'_>| {
        let sent = names.iter().find(|(name, _)| *name == item.name());
        sent.map_or_else(|| item.name().to_owned(), |(_, sent)| sent.clone())
    };
    let ours = fields::policy_field(settings, items, Some(&rename));
    set(headers, RATELIMIT_POLICY, policies, ours);
    if redirect {
        set(headers, RATELIMIT, limits, None);
    } else {
        let ours = fields::limit_field(settings, items, Some(&rename));
        set(headers, RATELIMIT, limits, ours);
    }
    *malformed
}

/// Names that the upstream sends, each with its partition key.
#[derive(Default)]
struct Taken {
    names: BTreeSet<(String, Option<Vec<u8>>)>,
}

impl Taken {
    fn add(&mut self, list: List) {
        for entry in list {
            let ListEntry::Item(item) = entry else {
                continue;
            };
            let BareItem::String(name) = item.bare_item else {
                continue;
            };
            let key = match item.params.get("pk") {
                Some(BareItem::ByteSequence(key)) => Some(key.clone()),
                _ => None,
            };
            self.names.insert((String::from(name), key));
        }
    }

    /// What each item is sent as: its own name, or the first with `tollgate-` before it that nobody has, neither the
    /// upstream nor another item.
    fn names_for<'a>(&self, items: &[Item<'a>], partition_key: bool) -> Vec<(&'a str, String)> {
        let mut ours: BTreeSet<String> = items.iter().map(|item| item.name().to_owned()).collect();
        let sent = |item: &Item<'a>| {
            let key = partition_key.then(|| item.partition_key().to_vec());
            let mut wanted = (item.name().to_owned(), key);
            let mut is_free = !self.names.contains(&wanted);
            while !is_free {
                wanted.0.insert_str(0, "tollgate-");
                is_free = !self.names.contains(&wanted) && ours.insert(wanted.0.clone());
            }
            (item.name(), wanted.0)
        };
        items.iter().map(sent).collect()
    }
}

/// All lines of a field as one, if they can be read; its names go to `taken`.
fn kept(
    headers: &HeaderMap,
    name: HeaderName,
    taken: &mut Taken,
    malformed: &mut bool,
) -> Option<Vec<u8>> {
    let mut joined: Option<Vec<u8>> = None;
    for line in headers.get_all(name) {
        let line = line.as_bytes().trim_ascii();
        match &mut joined {
            None => joined = Some(line.to_vec()),
            Some(joined) if line.is_empty() || joined.is_empty() => joined.extend_from_slice(line),
            Some(joined) => {
                joined.extend_from_slice(b", ");
                joined.extend_from_slice(line);
            }
        }
    }
    let joined = joined?;
    match Parser::new(&joined).parse::<List>() {
        Ok(list) => {
            taken.add(list);
            Some(joined)
        }
        Err(_) => {
            *malformed = true;
            None
        }
    }
}

/// Theirs, then ours; without either there is no such field.
fn set(headers: &mut HeaderMap, name: HeaderName, theirs: Option<Vec<u8>>, ours: Option<String>) {
    let mut value = theirs.unwrap_or_default();
    if let Some(ours) = ours {
        if !value.is_empty() {
            value.extend_from_slice(b", ");
        }
        value.extend_from_slice(ours.as_bytes());
    }
    match HeaderValue::try_from(value) {
        Ok(value) if !value.is_empty() => drop(headers.insert(name, value)),
        _ => drop(headers.remove(name)),
    }
}

/// Single values can't be merged: the whole triple is theirs, or ours where ours is what stops the client.
fn put_legacy(settings: &Settings, items: &[Item<'_>], now_epoch_s: u64, headers: &mut HeaderMap) {
    let Some(item) = fields::legacy_item(items) else {
        return;
    };
    let theirs = LEGACY.iter().any(|name| headers.contains_key(name));
    let ours_counts = match settings.upstream_ratelimit {
        UpstreamFields::Merge => item.remaining == 0,
        UpstreamFields::Pass => false,
        UpstreamFields::Replace => true,
    };
    if !theirs || ours_counts {
        remove(headers, &LEGACY);
        fields::put_legacy(settings, items, now_epoch_s, headers);
    }
}

fn remove(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        headers.remove(name);
    }
}

/// The upstream's own refusal keeps its `Retry-After`, unless ours would refuse the client still after that.
pub(super) fn prolong_retry_after(wait_s: u64, headers: &mut HeaderMap) {
    let Some(theirs) = headers.get(header::RETRY_AFTER) else {
        return;
    };
    // A date is left alone: it may be rounded any way.
    let seconds = theirs
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    if seconds.is_some_and(|seconds| seconds < wait_s) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(wait_s));
    }
}
