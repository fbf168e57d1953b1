//! What holds of every answer.

use super::*;

fn any_rule() -> impl Strategy<Value = Rule> {
    let window = prop_oneof![1_u64..=5_000_000, Just(MINUTE), Just(86_400 * SECOND)];
    (0_u8..5, 1_u64..=1_000_000, window, 1_u64..=1_000_000).prop_map(
        |(kind, count, window, burst)| match kind {
            0 => fixed(count, window),
            1 => log(count, window),
            2 => counter(count, window),
            3 => bucket(count, window, burst),
            _ => leaky(count, window, burst),
        },
    )
}

proptest! {
    #[test]
    fn no_bytes_of_an_upstream_make_it_stumble_or_spoil_ours(
        lines in proptest::collection::vec(
            prop_oneof!["[ -~]{0,30}".prop_map(String::into_bytes), "(\"[a-z]{1,5}\";r=[0-9],? ?){0,3}".prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..40)],
            0..4,
        ),
        exposed in "[ -~]{0,20}",
    ) {
        let mut headers = HeaderMap::new();
        headers.insert("access-control-allow-origin", HeaderValue::from_static("*"));
        headers.insert("access-control-expose-headers", HeaderValue::from_str(&exposed).unwrap());
        for line in &lines {
            if let Ok(value) = HeaderValue::from_bytes(line) {
                headers.append("ratelimit", value.clone());
                headers.append("ratelimit-policy", value.clone());
                headers.append("retry-after", value);
            }
        }
        let login = policy("login", log(10, MINUTE));
        annotate(&settings(), &[ruling(&login, allowed(0, MINUTE))], StatusCode::TOO_MANY_REQUESTS, 0, &mut headers);
        for name in ["ratelimit", "ratelimit-policy"] {
            let value = headers.get(name).unwrap();
            let list: List = Parser::new(value.as_bytes()).parse().unwrap();
            prop_assert!(list.iter().any(|entry| matches!(entry, ListEntry::Item(item) if item.bare_item.as_string().is_some_and(|s| s.as_str().ends_with("login")))));
        }
    }

    #[test]
    fn no_answer_invites_more_than_the_policy_lets_through(
        rule in any_rule(), remaining: u64, reset_after_us in 0..=(1_u64 << 53), retry in proptest::option::of(0..=(1_u64 << 53)), denies: bool,
    ) {
        let policy = policy("p", rule);
        let remaining = remaining % policy.limits.rule.capacity().saturating_add(1);
        let decision = if denies { denied(remaining, retry, reset_after_us) } else { allowed(remaining, reset_after_us) };
        let rulings = [ruling(&policy, decision)];
        let answer = refuse(&Settings::default(), &[], Refusal::Quota, &rulings, asked());
        let told = members(&answer.headers, "ratelimit");
        let retry_after = field(&answer.headers, "retry-after").map(|s| s.parse::<i64>().unwrap());
        for (name, value) in &told[0].1 {
            prop_assert!(*value >= 0);
            if name == "t" {
                prop_assert!(*value >= 1);
                if denies && let Some(retry_after) = retry_after {
                    prop_assert!(*value <= retry_after);
                }
            } else {
                prop_assert!(u64::try_from(*value).unwrap() <= remaining);
            }
        }
        prop_assert_eq!(members(&answer.headers, "ratelimit-policy").len(), 1);
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&answer.body).is_ok());
    }

    #[test]
    fn no_wish_makes_it_stumble(accept in any::<String>(), origin in any::<String>(), request_id in any::<String>()) {
        let login = policy("login", log(5, MINUTE));
        let rulings = [ruling(&login, denied(0, Some(SECOND), MINUTE))];
        let asked = Asked { head: false, accept: Some(&accept), origin: Some(&origin), request_id: &request_id, now_epoch_s: u64::MAX };
        let reject = Reject { cors: vec![origin.clone().into()], ..Reject::default() };
        let settings = Settings { legacy: Legacy::Epoch, ..settings() };
        let answer = refuse(&settings, &[reject], Refusal::Quota, &rulings, asked);
        prop_assert!(!answer.body.is_empty());
        let _ = Template::parse(&accept, PLACEHOLDERS);
    }
}
