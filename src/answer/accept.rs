//! What kind of body the client would rather read.

/// How much a client wants a media type (lower case, without parameters), in thousandths; 1000 without an `Accept`.
pub(super) fn quality(accept: Option<&str>, essence: &str) -> u16 {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return 1_000;
    };
    let (kind, _) = essence.split_once('/').unwrap_or((essence, ""));
    // The closest range counts, whatever the others say.
    let mut closest = (0_u8, 0_u16);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let closeness = match name.split_once('/') {
            Some(_) if name.eq_ignore_ascii_case(essence) => 3,
            Some((its_kind, "*")) if its_kind.eq_ignore_ascii_case(kind) => 2,
            Some(("*", "*")) => 1,
            _ => continue,
        };
        let weight = parts.find_map(|param| {
            let (name, value) = param.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("q")
                .then(|| thousandths(value.trim()))
        });
        closest = closest.max((closeness, weight.unwrap_or(1_000)));
    }
    closest.1
}

/// `0.5` is 500; what is no weight is none.
fn thousandths(text: &str) -> u16 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.bytes().chain([b'0'; 3]).take(3);
    let fraction = digits.fold(0_u16, |sum, digit| {
        sum.saturating_mul(10)
            .saturating_add(u16::from(digit.wrapping_sub(b'0').min(9)))
    });
    match whole {
        "0" => fraction,
        "1" => 1_000,
        _ => 0,
    }
}

/// How much a client wants JSON, by any of its names.
pub(super) fn json_quality(accept: Option<&str>, essence: &str) -> u16 {
    quality(accept, essence).max(quality(accept, "application/json"))
}
