//! Signed tokens: which are believed, and every way to forge one.

use serde_json::{Value, json};
use tollgate::client::jwt::{Algorithm, BadKeys, Expected, KeySet, Refused, verify};

use crate::support::tokens::{Signer, encoded, jwks};

/// Seconds since the epoch.
const NOW: u64 = 1_800_000_000;

fn expected() -> Expected {
    Expected {
        issuer: Some("https://issuer.example".into()),
        audiences: Box::new(["shop".into(), "shop-admin".into()]),
        algorithms: Box::new([Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa]),
        leeway_s: 60,
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.example",
        "aud": "shop",
        "sub": "alice",
        "exp": NOW + 300,
    })
}

/// Claims of which one is another; null takes it out.
fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    match value {
        Value::Null => claims.as_object_mut().unwrap().remove(name),
        value => claims
            .as_object_mut()
            .unwrap()
            .insert(name.to_owned(), value),
    };
    claims
}

fn set(signers: &[&Signer]) -> KeySet {
    KeySet::of_jwks(jwks(signers).as_bytes()).unwrap()
}

fn refused(token: &str, keys: &KeySet) -> Option<Refused> {
    verify(token.as_bytes(), keys, &expected(), NOW).err()
}

/// RFC 7515, appendices A.1 to A.3.
#[test]
fn the_examples_of_the_standard_are_verified() {
    const PAYLOAD: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let secret =
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    let secret = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, secret);
    let by_secret = KeySet::of_secret(&secret.unwrap()).unwrap();
    let rsa = json!({ "keys": [{ "kty": "RSA", "e": "AQAB",
        "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ" }] });
    let curve = json!({ "keys": [{ "kty": "EC", "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0" }] });
    let of = |set: &Value| KeySet::of_jwks(set.to_string().as_bytes()).unwrap();
    for (header, signature, keys) in [
        (
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
            by_secret,
        ),
        (
            "eyJhbGciOiJSUzI1NiJ9",
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
            of(&rsa),
        ),
        (
            "eyJhbGciOiJFUzI1NiJ9",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
            of(&curve),
        ),
    ] {
        let anybody = Expected {
            algorithms: Box::new(Algorithm::ALL),
            ..Expected::default()
        };
        let token = format!("{header}.{PAYLOAD}.{signature}");
        let at = |now_s| verify(token.as_bytes(), &keys, &anybody, now_s);
        let claims = at(1_300_819_379).unwrap();
        assert_eq!(claims.get("iss").as_deref(), Some("joe"));
        assert_eq!(
            claims.get("http://example.com/is_root").as_deref(),
            Some("true")
        );
        assert_eq!(at(1_300_819_380), Err(Refused::Expired), "{header}");
    }
}

#[test]
fn what_each_algorithm_signs_is_believed_and_told_apart() {
    let (rsa, curve, edwards) = (Signer::rsa("r"), Signer::curve("c"), Signer::edwards("e"));
    let all = set(&[&rsa, &curve, &edwards]);
    for signer in [&rsa, &curve, &edwards] {
        let claims = verify(signer.token(&claims()).as_bytes(), &all, &expected(), NOW).unwrap();
        assert_eq!(claims.get("sub").as_deref(), Some("alice"));
        // Without a name the keys of the algorithm are tried.
        let nameless = json!({ "alg": signer.algorithm() });
        assert_eq!(
            refused(&signer.token_with(&nameless, &self::claims()), &all),
            None
        );
        // By another's name.
        for other in [&rsa, &curve, &edwards] {
            let header = json!({ "alg": signer.algorithm(), "kid": other.id });
            let found = refused(&signer.token_with(&header, &self::claims()), &all);
            assert_eq!(found.is_none(), signer.id == other.id);
            let header = json!({ "alg": other.algorithm(), "kid": signer.id });
            let found = refused(&signer.token_with(&header, &self::claims()), &all);
            assert_eq!(found.is_none(), signer.id == other.id);
        }
    }
    let stranger = Signer::curve("c");
    assert_eq!(
        refused(&stranger.token(&claims()), &all),
        Some(Refused::Invalid)
    );
    let newer = Signer::curve("c2");
    assert_eq!(
        refused(&newer.token(&claims()), &all),
        Some(Refused::UnknownKey)
    );
    assert_eq!(
        refused(&newer.token(&claims()), &KeySet::none()),
        Some(Refused::UnknownKey)
    );
}

#[test]
fn nothing_is_believed_unsigned() {
    let curve = Signer::curve("c");
    let keys = set(&[&curve]);
    let payload = encoded(claims().to_string().as_bytes());
    for alg in [
        json!("none"),
        json!("None"),
        json!("NONE"),
        json!(""),
        json!(null),
        json!(["ES256"]),
        json!("es256"),
        json!("HS256"),
        json!("ES256K"),
    ] {
        for header in [json!({ "alg": alg }), json!({ "alg": alg, "kid": "c" })] {
            let header_text = encoded(header.to_string().as_bytes());
            for signature in ["", "AA", &encoded(&[0; 64])] {
                let token = format!("{header_text}.{payload}.{signature}");
                assert_eq!(refused(&token, &keys), Some(Refused::Invalid), "{header}");
            }
            let signed = curve.token_with(&header, &claims());
            assert_eq!(refused(&signed, &keys), Some(Refused::Invalid), "{header}");
        }
    }
    for header in [
        "{}",
        "[]",
        "null",
        "[\"ES256\"]",
        "",
        "{\"alg\":\"ES256\",\"alg\":\"none\"}",
        "\u{feff}{\"alg\":\"ES256\"}",
    ] {
        let token = curve.token_of(header.as_bytes(), claims().to_string().as_bytes());
        assert_eq!(refused(&token, &keys), Some(Refused::Invalid), "{header}");
    }
    // Extensions that we do not know would have to be understood.
    for crit in [json!(["b64"]), json!([]), json!(null)] {
        let header = json!({ "alg": "ES256", "kid": "c", "crit": crit, "b64": false });
        assert_eq!(
            refused(&curve.token_with(&header, &claims()), &keys),
            Some(Refused::Invalid)
        );
    }
}

/// The oldest of forgeries: a public key is known to all, and taken for a secret it signs anything.
#[test]
fn a_public_key_is_no_secret() {
    let everything = Expected {
        algorithms: Box::new(Algorithm::ALL),
        ..expected()
    };
    for signer in [Signer::rsa("k"), Signer::curve("k"), Signer::edwards("k")] {
        let keys = set(&[&signer]);
        for secret in signer.public_key_as_secrets() {
            let forger = Signer::secret(&secret);
            for header in [
                json!({ "alg": "HS256" }),
                json!({ "alg": "HS256", "kid": "k" }),
            ] {
                let token = forger.token_with(&header, &claims());
                // Allowed or not: there is no key that verifies so.
                for expected in [&expected(), &everything] {
                    let found = verify(token.as_bytes(), &keys, expected, NOW);
                    assert!(found.is_err(), "{header}");
                }
            }
        }
    }
    // And a shared secret among public keys is none of them.
    let secret = Signer::secret(&[7; 32]);
    let text = jwks(&[&secret]);
    assert_eq!(
        KeySet::of_jwks(text.as_bytes()).err(),
        Some(BadKeys::NoneUsable)
    );
    let rsa = Signer::rsa("r");
    let token = secret.token(&claims());
    let keys = set(&[&rsa, &secret]);
    assert!(verify(token.as_bytes(), &keys, &everything, NOW).is_err());
    assert_eq!(keys.len(), 1);
    // What is signed with a secret is verified with that secret and no other.
    let keys = KeySet::of_secret(&[7; 32]).unwrap();
    assert!(verify(token.as_bytes(), &keys, &everything, NOW).is_ok());
    let other = Signer::secret(&[8; 32]).token(&claims());
    assert!(verify(other.as_bytes(), &keys, &everything, NOW).is_err());
    let public = rsa.token(&claims());
    assert!(verify(public.as_bytes(), &keys, &everything, NOW).is_err());
}

#[test]
fn a_token_holds_for_its_time_its_issuer_and_its_audience() {
    let signer = Signer::edwards("e");
    let keys = set(&[&signer]);
    let cases = [
        ("exp", json!(NOW - 59), None),
        ("exp", json!(NOW - 60), Some(Refused::Expired)),
        ("exp", json!(0), Some(Refused::Expired)),
        ("exp", json!(1_800_000_000.5), None),
        ("exp", json!(1e18), None),
        ("exp", json!(u64::MAX), None),
        ("exp", Value::Null, Some(Refused::Invalid)),
        (
            "exp",
            json!((NOW + 300).to_string()),
            Some(Refused::Invalid),
        ),
        ("exp", json!(-1), Some(Refused::Invalid)),
        ("exp", json!(1e300), Some(Refused::Invalid)),
        ("exp", json!([NOW + 300]), Some(Refused::Invalid)),
        ("exp", json!(true), Some(Refused::Invalid)),
        ("nbf", json!(NOW + 60), None),
        ("nbf", json!(NOW + 61), Some(Refused::Invalid)),
        ("nbf", json!((NOW - 5).to_string()), Some(Refused::Invalid)),
        ("nbf", json!({}), Some(Refused::Invalid)),
        ("iss", Value::Null, Some(Refused::Invalid)),
        (
            "iss",
            json!("https://issuer.example/"),
            Some(Refused::Invalid),
        ),
        (
            "iss",
            json!("HTTPS://issuer.example"),
            Some(Refused::Invalid),
        ),
        (
            "iss",
            json!(["https://issuer.example"]),
            Some(Refused::Invalid),
        ),
        ("aud", json!("shop-admin"), None),
        ("aud", json!(["other", "shop"]), None),
        ("aud", Value::Null, Some(Refused::Invalid)),
        ("aud", json!("shop2"), Some(Refused::Invalid)),
        ("aud", json!("shop shop-admin"), Some(Refused::Invalid)),
        ("aud", json!([]), Some(Refused::Invalid)),
        ("aud", json!(["other", ["shop"]]), Some(Refused::Invalid)),
        ("aud", json!({ "shop": true }), Some(Refused::Invalid)),
    ];
    for (name, value, expected) in cases {
        let token = signer.token(&claims_with(name, value.clone()));
        assert_eq!(refused(&token, &keys), expected, "{name} = {value}");
    }
    // JSON has no null in its claims that would be as good as nothing.
    let mut null = claims();
    null["nbf"] = Value::Null;
    assert_eq!(refused(&signer.token(&null), &keys), Some(Refused::Invalid));
}

#[test]
fn what_is_not_a_token_is_refused_whatever_it_is() {
    let signer = Signer::curve("c");
    let keys = set(&[&signer]);
    let good = signer.token(&claims());
    assert_eq!(refused(&good, &keys), None);
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("{good}");
    };
    let huge = signer.token(&claims_with("x", json!("x".repeat(8192))));
    let nested = signer.token_of(
        json!({ "alg": "ES256", "cty": "JWT" })
            .to_string()
            .as_bytes(),
        good.as_bytes(),
    );
    let deep = signer.token_of(
        b"{\"alg\":\"ES256\"}",
        format!("{}1{}", "[".repeat(2000), "]".repeat(2000)).as_bytes(),
    );
    let der = signer.token_of(b"{\"alg\":\"ES256\"}", &[0xff, 0xfe, 0x80]);
    for token in [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        header,
        &format!("{header}.{payload}"),
        &format!("{header}.{payload}."),
        &format!(".{payload}.{signature}"),
        &format!("{header}..{signature}"),
        &format!("{good}."),
        &format!("{good}.{signature}"),
        &format!("{good}="),
        &format!("{good}=="),
        &format!("{good}A"),
        &format!(" {good}"),
        &format!("{good} "),
        &format!("{good}\n"),
        &good[..good.len() - 1],
        &good[1..],
        &good.replace('.', ".."),
        &good.replace('.', ","),
        &good.to_lowercase(),
        &huge,
        &nested,
        &deep,
        &der,
        &"a".repeat(100_000),
        &".".repeat(100_000),
        "\u{0}\u{0}\u{0}",
        "ü.ü.ü",
    ] {
        assert_eq!(refused(token, &keys), Some(Refused::Invalid), "{token}");
    }
    // No bit of it may be another.
    for at in 0..good.len() {
        for bit in [0, 1, 4, 7] {
            let mut bytes = good.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            assert!(
                verify(&bytes, &keys, &expected(), NOW).is_err(),
                "byte {at}, bit {bit}"
            );
        }
    }
    // The same signature in DER, as others than JWS write it.
    let text = json!({ "alg": "ES256", "kid": "c" }).to_string();
    let token = format!(
        "{}.{payload}.{}",
        encoded(text.as_bytes()),
        encoded(&[0x30; 70])
    );
    assert_eq!(refused(&token, &keys), Some(Refused::Invalid));
}

#[test]
fn a_key_is_used_for_what_it_is_for() {
    let (rsa, curve, edwards) = (Signer::rsa("r"), Signer::curve("c"), Signer::edwards("e"));
    let believed = |signer: &Signer, member: &str, value: Value| {
        let mut jwk = signer.jwk();
        match value {
            Value::Null => jwk.as_object_mut().unwrap().remove(member),
            value => jwk
                .as_object_mut()
                .unwrap()
                .insert(member.to_owned(), value),
        };
        let text = json!({ "keys": [jwk] }).to_string();
        KeySet::of_jwks(text.as_bytes())
            .is_ok_and(|keys| refused(&signer.token(&claims()), &keys).is_none())
    };
    for (signer, member, value, expected) in [
        (&rsa, "alg", json!(null), true),
        (&rsa, "alg", json!("RS256"), true),
        (&rsa, "alg", json!("HS256"), false),
        (&rsa, "alg", json!("RS512"), false),
        (&rsa, "alg", json!("RSA-OAEP"), false),
        (&rsa, "alg", json!("none"), false),
        (&curve, "alg", json!("ES384"), false),
        (&edwards, "alg", json!("Ed25519"), true),
        (&curve, "alg", json!("Ed25519"), false),
        (&rsa, "use", json!(null), true),
        (&rsa, "use", json!("enc"), false),
        (&rsa, "use", json!("signing"), false),
        (&rsa, "key_ops", json!(["verify"]), true),
        (&rsa, "key_ops", json!(["sign", "verify"]), true),
        (&rsa, "key_ops", json!(["encrypt"]), false),
        (&rsa, "key_ops", json!([]), false),
        (&rsa, "kid", json!(null), true),
        (&rsa, "kid", json!("other"), false),
        (&rsa, "kid", json!(7), false),
        (&rsa, "kty", json!("oct"), false),
        (&rsa, "kty", json!("EC"), false),
        (&rsa, "kty", json!(null), false),
        // 1024 bits, and none.
        (&rsa, "n", json!(encoded(&[0xff; 128])), false),
        (&rsa, "n", json!(""), false),
        (&rsa, "n", json!("not base64url!"), false),
        (&rsa, "e", json!("AA"), false),
        (&rsa, "e", json!("AQ"), false),
        (&curve, "crv", json!("P-384"), false),
        (&curve, "crv", json!("secp256k1"), false),
        (&curve, "x", json!(encoded(&[1; 32])), false),
        (&curve, "x", json!(encoded(&[1; 31])), false),
        (&curve, "y", json!(null), false),
        (&edwards, "crv", json!("X25519"), false),
        (&edwards, "x", json!(encoded(&[0; 33])), false),
        // Of no interest, whatever it is.
        (&rsa, "x5c", json!([1, 2, { "a": null }]), true),
    ] {
        let found = believed(signer, member, value.clone());
        assert_eq!(found, expected, "{} {member} = {value}", signer.algorithm());
    }
}

#[test]
fn a_set_of_keys_is_bounded_and_says_what_is_wrong_with_it() {
    let curve = Signer::curve("c");
    let good = curve.jwk();
    for (text, why) in [
        (String::new(), BadKeys::NotASet),
        ("[]".to_owned(), BadKeys::NotASet),
        ("{}".to_owned(), BadKeys::NotASet),
        ("{\"keys\":{}}".to_owned(), BadKeys::NotASet),
        (good.to_string(), BadKeys::NotASet),
        ("<html>".to_owned(), BadKeys::NotASet),
        ("{\"keys\":[]}".to_owned(), BadKeys::NoneUsable),
        (
            "{\"keys\":[null, 1, \"x\", {}]}".to_owned(),
            BadKeys::NoneUsable,
        ),
        (
            json!({ "keys": vec![&good; 101] }).to_string(),
            BadKeys::TooMany(101),
        ),
    ] {
        assert_eq!(KeySet::of_jwks(text.as_bytes()).err(), Some(why), "{text}");
    }
    let mixed = json!({ "keys": [null, { "kty": "new" }, good], "more": 1 }).to_string();
    assert_eq!(KeySet::of_jwks(mixed.as_bytes()).unwrap().len(), 1);
    assert_eq!(
        KeySet::of_secret(&[0; 31]).err(),
        Some(BadKeys::ShortSecret(31))
    );
    let secret = KeySet::of_secret(b"a secret of some thirty-two bytes").unwrap();
    assert!(!format!("{secret:?}").contains("secret of"));
}

#[test]
fn claims_are_read_where_they_are_one_value() {
    let signer = Signer::edwards("e");
    let mut claims = claims();
    for (name, value) in [
        ("text", json!("a b")),
        ("whole", json!(-7)),
        ("large", json!(u64::MAX)),
        ("flag", json!(false)),
        ("empty", json!("")),
        ("fraction", json!(1.5)),
        ("list", json!(["a"])),
        ("table", json!({ "a": 1 })),
        ("null", json!(null)),
    ] {
        claims[name] = value;
    }
    let found = verify(
        signer.token(&claims).as_bytes(),
        &set(&[&signer]),
        &expected(),
        NOW,
    )
    .unwrap();
    for (name, value) in [
        ("text", Some("a b")),
        ("whole", Some("-7")),
        ("large", Some("18446744073709551615")),
        ("flag", Some("false")),
        ("empty", None),
        ("fraction", None),
        ("list", None),
        ("table", None),
        ("null", None),
        ("absent", None),
    ] {
        assert_eq!(found.get(name).as_deref(), value, "{name}");
    }
}
