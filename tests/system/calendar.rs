//! Quotas by the calendar, as a client and a server see them: they last to the end of this very day or month.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::{Response, get_with};
use crate::support::valkey::Valkey;

const ZONE: &str = "Australia/Lord_Howe";

/// How many seconds this month and this day still have in Lord Howe.
fn left() -> [i64; 2] {
    let zone = TimeZone::get(ZONE).unwrap();
    let now = Timestamp::now().to_zoned_datetime(zone);
    let month = now.first_of_month().unwrap() + 1.month();
    [month, now.tomorrow().unwrap()].map(|next| {
        next.start_of_day().unwrap().timestamp().as_second() - now.timestamp().as_second()
    })
}

fn config(store: &str) -> String {
    let policy = |name: &str, limit: &str| {
        format!(
            "[policies.{name}]\nkind = \"fixed-window\"\nlimit = \"{limit}\"\nkey = \"header:x-key\"\n\
             on_missing_key = \"deny\"\nanchor = {{ calendar = \"{name}\", tz = \"{ZONE}\" }}\n\
             [routes.{name}]\nmatch = {{ path = \"/{name}\" }}\nupstream = \"demo\"\npolicies = [\"{name}\"]\n"
        )
    };
    format!(
        "{store}[headers]\nretry_after_jitter = \"0%\"\n[upstreams.demo]\nbuiltin = \"echo\"\n{}{}",
        policy("month", "3/month"),
        policy("day", "3/d")
    )
}

fn number(response: &Response, field: &str) -> i64 {
    let value = response.header(field).unwrap();
    value.parse().unwrap()
}

#[test]
fn a_quota_lasts_to_the_end_of_its_day_or_month_in_both_stores() {
    let valkey = Valkey::start();
    let shared = format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n",
        valkey.address(),
        secret_file().display()
    );
    for store in ["", &shared] {
        let gateway = Gateway::start(&config(store));
        if !store.is_empty() {
            gateway.await_metric("tollgate_store_up", 1.0);
        }
        for (place, (unit, window)) in [("month", "2678400"), ("day", "86400")].iter().enumerate() {
            let path = format!("/{unit}");
            // A day may end within these requests: then another caller sees one that does not.
            let denied = (0..3).find_map(|key| {
                let key = format!("caller-{key}");
                let before = left()[place];
                let ask = || get_with(gateway.address, &path, &[("x-key", &key)]);
                let [.., last] = [ask(), ask(), ask(), ask()];
                let after = left()[place];
                (after <= before).then_some((last, before, after))
            });
            let (denied, before, after) = denied.unwrap();
            assert_eq!(denied.status, 429, "{unit}");
            let wait = number(&denied, "retry-after");
            // Whole seconds, rounded up.
            assert!(
                (after..=before + 1).contains(&wait),
                "{unit}: {wait}, not {after} to {before}"
            );
            let policy = denied.header("ratelimit-policy").unwrap();
            assert_eq!(policy, format!("\"{unit}\";q=3;w={window}"));
            let said = format!("Policy {unit} allows 3 per {unit}. Try again in {wait} second");
            assert!(denied.text().contains(&said), "{}", denied.text());
        }
    }
    let mut connection = valkey.connect();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("tollgate:{*")
        .query(&mut connection)
        .unwrap();
    assert_eq!(
        keys.len() % 2,
        0,
        "a key for each quota and caller: {keys:?}"
    );
    let [month, day] = left();
    for key in keys {
        let seconds: i64 = redis::cmd("TTL").arg(&key).query(&mut connection).unwrap();
        let most = if key.contains(":month:") { month } else { day };
        assert!(
            (most - 60..=most + 3).contains(&seconds),
            "{key}: {seconds}, not {most}"
        );
    }
}
