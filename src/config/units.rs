//! Durations, rates, sizes and percentages. One spelling each; any other is refused with the right one beside it.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::check::NewLimit;
use crate::decide::{CalendarUnit, Limit, UNITS_MAX};

/// A count, and the window it is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Rate {
    /// Of a month, so long as the longest.
    pub(crate) limit: Limit,
    /// Whether the window is a month: how long that is only a calendar knows.
    pub(crate) is_month: bool,
}

/// Why a text is not a quantity, and what to write instead.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    pub(crate) help: Option<String>,
    /// It is one, but too small or too large.
    pub(crate) out_of_bounds: bool,
}

impl Refusal {
    pub(crate) fn new(why: impl Into<String>, help: impl Into<String>) -> Self {
        let help = help.into();
        Self {
            why: why.into(),
            help: (!help.is_empty()).then_some(help),
            out_of_bounds: false,
        }
    }

    fn bounds(why: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            out_of_bounds: true,
            ..Self::new(why, help)
        }
    }
}

/// The longest window: a leap year.
pub(crate) const WINDOW_MAX: Duration = Duration::from_secs(366 * 86_400);

/// What to write for what zero might mean.
pub(crate) const INSTEAD_OF_ZERO: &str = "to lift the limit write mode = \"off\"; to deny everything give the route respond = { status = 403 }";

/// Units of time in milliseconds, the longest first.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

const DURATION_HELP: &str =
    "write a whole number and a unit: \"20ms\", \"90s\", \"15m\", \"1h30m\", \"7d\"";
const RATE_HELP: &str =
    "write a count, a slash and a time: \"100/min\", \"10/s\", \"5/15m\", \"100_000/d\"";

/// `1h30m`: whole numbers with units, the longest unit first.
pub(crate) fn duration(text: &str) -> Result<Duration, Refusal> {
    let refuse = |help: &str| Err(Refusal::new(format!("`{text}` is not a duration"), help));
    let mut rest = text;
    let mut total: u64 = 0;
    let mut parts: Vec<(u64, u64)> = Vec::new();
    while !rest.is_empty() {
        let (digits, after) = leading(rest, |c| c.is_ascii_digit());
        let (letters, after) = leading(after, |c| c.is_ascii_alphabetic());
        let Ok(count) = digits.parse::<u64>() else {
            return refuse(&duration_advice(text));
        };
        let Some(unit) = unit(letters) else {
            return refuse(&duration_advice(text));
        };
        if parts.last().is_some_and(|(_, last)| *last <= unit) {
            return refuse(&format!(
                "{}; each unit once, the longest first",
                in_order(&parts, count, unit)
            ));
        }
        parts.push((count, unit));
        total = total.saturating_add(count.saturating_mul(unit));
        rest = after;
    }
    if parts.is_empty() {
        return refuse(DURATION_HELP);
    }
    Ok(Duration::from_millis(total))
}

/// `100/min`, `5/15m`, `100_000/month`: a count, and the window it is for.
pub(crate) fn rate(text: &str) -> Result<Rate, Refusal> {
    read_rate(text).unwrap_or_else(|| {
        Err(Refusal::new(
            format!("`{text}` is not a rate"),
            rate_advice(text),
        ))
    })
}

/// Refuses nothing, or less, as a limit: some systems take it for "unlimited", some for "never".
pub(crate) fn not_a_limit(found: &str) -> Refusal {
    Refusal::bounds(format!("`{found}` is not a limit"), INSTEAD_OF_ZERO)
}

/// As [`rate`], without advice; `None` if it is not written as a rate at all.
fn read_rate(text: &str) -> Option<Result<Rate, Refusal>> {
    let (count, time) = text.split_once('/')?;
    let count = grouped(count)?;
    if time == "month" {
        let window_us = NonZeroU64::new(CalendarUnit::Month.nominal_us())?;
        return Some(limit(text, count, window_us, true));
    }
    let (digits, letters) = leading(time, |c| c.is_ascii_digit() || c == '_');
    let times = if digits.is_empty() {
        1
    } else {
        grouped(digits)?
    };
    let millis = times.saturating_mul(unit(letters)?);
    let longest = u64::try_from(WINDOW_MAX.as_millis()).unwrap_or(u64::MAX);
    let window_us = NonZeroU64::new(millis.saturating_mul(1_000));
    let Some(window_us) = window_us.filter(|_| millis <= longest) else {
        return Some(Err(Refusal::bounds(
            format!("the window of `{text}` is out of bounds"),
            "a window lasts from 1ms to 366d",
        )));
    };
    Some(limit(text, count, window_us, false))
}

fn limit(text: &str, count: u64, window_us: NonZeroU64, is_month: bool) -> Result<Rate, Refusal> {
    let count = NonZeroU64::new(count).ok_or_else(|| not_a_limit(text))?;
    if count.get() > UNITS_MAX {
        return Err(Refusal::bounds(
            format!("the count of `{text}` is out of bounds"),
            format!("a count is from 1 to {UNITS_MAX}"),
        ));
    }
    let limit = Limit { count, window_us };
    Ok(Rate { limit, is_month })
}

/// A rate as [`rate`] reads it: `100/min`.
pub(crate) fn rate_text(limit: Limit) -> String {
    format!("{}/{}", limit.count, window_text(limit))
}

/// The window of a rate, as it is written in one.
pub(crate) fn window_text(limit: Limit) -> String {
    let millis = limit.window_us.get() / 1_000;
    let unit = UNITS.iter().find(|(_, unit)| millis.is_multiple_of(*unit));
    match unit.map(|(name, unit)| (name, millis / unit)) {
        Some((name, 1)) => (*name).to_owned(),
        Some((name, times)) => format!("{times}{name}"),
        None => duration_text(Duration::from_micros(limit.window_us.get())),
    }
}

/// A limit as tiers have it: `100/min`, or a bare count.
#[must_use]
pub fn limit_text(limit: NewLimit) -> String {
    match limit {
        NewLimit::Rate(rate) => rate_text(rate),
        NewLimit::Count(count) => count.to_string(),
    }
}

/// Reads a limit as tiers have it.
///
/// # Errors
///
/// What was found, and what to write instead.
pub fn read_limit(text: &str) -> Result<NewLimit, String> {
    match text.parse() {
        Ok(0) => Err(in_words(not_a_limit(text))),
        Ok(count) if count <= UNITS_MAX => Ok(NewLimit::Count(count)),
        _ => rate(text)
            .map(|rate| NewLimit::Rate(rate.limit))
            .map_err(in_words),
    }
}

/// Reads a duration: `90s`, `1h30m`.
///
/// # Errors
///
/// What was found, and what to write instead.
pub fn read_duration(text: &str) -> Result<Duration, String> {
    duration(text).map_err(in_words)
}

fn in_words(refusal: Refusal) -> String {
    match refusal.help {
        Some(help) => format!("{}; {help}", refusal.why),
        None => refusal.why,
    }
}

/// `64KiB`: a whole number of bytes, in powers of two.
pub(crate) fn size(text: &str) -> Result<u64, Refusal> {
    let (digits, letters) = leading(text, |c| c.is_ascii_digit() || c == '_');
    let factor = match letters {
        "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    if let (Some(count), Some(factor)) = (grouped(digits), factor) {
        return Ok(count.saturating_mul(factor));
    }
    let meant = match letters
        .trim()
        .chars()
        .next()
        .map(|c| c.to_ascii_lowercase())
    {
        Some('k') => Some("KiB"),
        Some('m') => Some("MiB"),
        Some('g') => Some("GiB"),
        Some('b') => Some("B"),
        _ => None,
    };
    let help = match (grouped(digits), meant) {
        (Some(count), Some(meant)) => format!("write \"{count}{meant}\""),
        (Some(count), None) if letters.is_empty() => {
            format!("write the unit: \"{count}B\" or \"{count}KiB\"")
        }
        _ => "write a whole number and a unit: \"64KiB\", \"1MiB\"".to_owned(),
    };
    Err(Refusal::new(format!("`{text}` is not a size"), help))
}

/// `10%`: from 0 to 100.
pub(crate) fn percent(text: &str) -> Result<u8, Refusal> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<u8>() {
        Ok(percent) if percent <= 100 && text.ends_with('%') && !number.starts_with('+') => {
            Ok(percent)
        }
        Ok(percent) if percent <= 100 && !number.starts_with('+') => Err(Refusal::new(
            format!("`{text}` is not a percentage"),
            format!("write \"{percent}%\""),
        )),
        _ => Err(Refusal::new(
            format!("`{text}` is not a percentage"),
            "write a whole number from 0 to 100 and the sign: \"10%\"",
        )),
    }
}

/// A duration as `duration` reads it: `1h30m`.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, unit) in UNITS.iter().filter(|(name, _)| *name != "min") {
        if rest >= *unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

fn unit(letters: &str) -> Option<u64> {
    UNITS
        .iter()
        .find(|(name, _)| *name == letters)
        .map(|(_, millis)| *millis)
}

/// Digits that may be grouped by single underscores, as TOML's are.
fn grouped(text: &str) -> Option<u64> {
    let well_grouped = text
        .split('_')
        .all(|group| !group.is_empty() && group.chars().all(|c| c.is_ascii_digit()));
    if !well_grouped {
        return None;
    }
    // What 64 bits do not hold is out of every bound.
    Some(text.replace('_', "").parse().unwrap_or(u64::MAX))
}

fn leading(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// The unit that somebody meant who wrote it out or in capitals.
fn meant_unit(word: &str) -> Option<&'static str> {
    Some(match word {
        "ms" | "msec" | "millisecond" | "milliseconds" => "ms",
        "s" | "S" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "M" | "min" | "mins" | "minute" | "minutes" | "Min" => "min",
        "h" | "H" | "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "D" | "day" | "days" => "d",
        _ => return None,
    })
}

fn in_order(parts: &[(u64, u64)], count: u64, unit: u64) -> String {
    let total = parts
        .iter()
        .chain([&(count, unit)])
        .fold(0u64, |sum, (count, unit)| {
            sum.saturating_add(count.saturating_mul(*unit))
        });
    format!("write \"{}\"", duration_text(Duration::from_millis(total)))
}

fn duration_advice(text: &str) -> String {
    let (digits, rest) = leading(text, |c| c.is_ascii_digit());
    if digits.is_empty() || digits.len() > 12 {
        return DURATION_HELP.to_owned();
    }
    if rest.is_empty() {
        return format!("write the unit: \"{digits}s\" or \"{digits}ms\"");
    }
    if let Some(fraction) = rest.strip_prefix('.') {
        let (decimals, letters) = leading(fraction, |c| c.is_ascii_digit());
        let exact = || {
            let unit = unit(letters.trim())?;
            let whole: u64 = format!("{digits}{decimals}").parse().ok()?;
            let scale = 10u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
            let millis = whole.checked_mul(unit)?;
            (millis % scale == 0).then(|| duration_text(Duration::from_millis(millis / scale)))
        };
        return exact().map_or_else(
            || "write whole numbers only: \"1h30m\", \"1500ms\"".to_owned(),
            |exact| format!("write whole numbers only: \"{exact}\""),
        );
    }
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if compact != text
        && let Ok(duration) = duration(&compact)
    {
        return format!("write \"{}\"", duration_text(duration));
    }
    match meant_unit(rest.trim()) {
        Some(unit) => format!("write \"{digits}{unit}\""),
        None => DURATION_HELP.to_owned(),
    }
}

/// What somebody meant who wrote `10r/s`, `10 rps`, `100 per minute`, `0.5/s`.
fn rate_advice(text: &str) -> String {
    meant_rate(text).map_or_else(|| RATE_HELP.to_owned(), |rate| format!("write \"{rate}\""))
}

fn meant_rate(text: &str) -> Option<String> {
    let text = text.trim();
    let (number, rest) = leading(text, |c| c.is_ascii_digit() || matches!(c, '_' | ',' | '.'));
    if number.is_empty() {
        return None;
    }
    let rest = rest.trim();
    if rest.is_empty() {
        return None;
    }
    let words: Vec<&str> = rest
        .split(|c: char| c.is_whitespace() || c == '/')
        .filter(|word| !word.is_empty())
        .filter(|word| {
            !matches!(
                *word,
                "r" | "req" | "reqs" | "request" | "requests" | "per" | "every" | "a" | "an" | "in"
            )
        })
        .collect();
    let (times, unit) = match words.as_slice() {
        ["rps" | "qps"] => ("", "s"),
        ["rpm"] => ("", "min"),
        ["rph"] => ("", "h"),
        [word] => {
            let (times, letters) = leading(word, |c| c.is_ascii_digit());
            (times, meant_unit(letters)?)
        }
        [times, word] if times.chars().all(|c| c.is_ascii_digit()) => (*times, meant_unit(word)?),
        _ => return None,
    };
    let candidate = match number.split_once('.') {
        Some((whole, decimals)) => {
            let count: u64 = format!("{whole}{decimals}").parse().ok()?;
            let scale = 10u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
            let times: u64 = if times.is_empty() {
                1
            } else {
                times.parse().ok()?
            };
            let window = times.checked_mul(scale)?;
            let divisor = common_divisor(count, window);
            let window = window.checked_div(divisor)?;
            let window = if window == 1 {
                String::new()
            } else {
                window.to_string()
            };
            format!("{}/{window}{unit}", count.checked_div(divisor)?)
        }
        None => format!("{}/{times}{unit}", number.replace(',', "")),
    };
    // Advice that is refused in turn helps nobody.
    matches!(read_rate(&candidate), Some(Ok(_))).then_some(candidate)
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}
