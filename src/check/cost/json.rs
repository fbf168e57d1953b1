//! JSON that comes in pieces: its keys and scalars, one after the other, in a fixed amount of memory.
//!
//! Strict (RFC 8259) in all but three respects: a text is not checked to be UTF-8, half of a surrogate pair reads as
//! U+FFFD, and a byte order mark may stand before all.

use super::decimal::is_number;

/// How deep values may be nested, as in `serde_json`.
const DEPTH_MAX: u32 = 127;

/// Whom the keys and scalars are told.
pub(super) trait See {
    /// An array, or an object, begins.
    fn open(&mut self, array: bool);
    /// The innermost array or object ends.
    fn close(&mut self);
    /// The key of the value that follows.
    fn key(&mut self, key: Token<'_>);
    /// A value that is neither array nor object.
    fn scalar(&mut self, scalar: Scalar<'_>);
}

/// A text that was kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    /// Its bytes, or the first of them.
    pub(super) bytes: &'a [u8],
    /// Whether they are all there.
    pub(super) whole: bool,
}

/// A value that is neither array nor object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar<'a> {
    /// A text, with its escapes resolved.
    Text(Token<'a>),
    /// A number, as it is spelled.
    Number(Token<'a>),
    /// `true`, `false` or `null`.
    Word,
}

/// It is not JSON.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Malformed;

/// A text of JSON, as far as it has come.
#[derive(Clone, Debug)]
pub(super) struct Json {
    state: State,
    /// How many arrays and objects are open; the kind of each is a bit, the innermost the lowest: 1 is an array.
    depth: u32,
    kinds: u128,
    token: Vec<u8>,
    /// How much of a key or a scalar is kept.
    token_max: usize,
    /// Whether the token is all there.
    whole: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// At the very beginning, where a mark may stand: so many bytes of it have come.
    Mark(usize),
    /// A value is to come.
    Value,
    /// A value, or the end of the array.
    FirstItem,
    /// A key, or the end of the object.
    FirstKey,
    /// A key.
    Key,
    /// What stands between a key and its value.
    Colon,
    /// A comma, or the end of the array or object.
    Next,
    /// A text goes on.
    Text { is_key: bool, part: Part },
    /// A number goes on.
    Number,
    /// `true`, `false` or `null` goes on.
    Word,
    /// The outermost value is there.
    Over,
    /// It is not JSON.
    Broken,
}

/// Where in a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    /// Between its characters; `high` is half of a surrogate pair, whose other half has to follow now.
    Plain { high: Option<u16> },
    /// Behind a backslash.
    Escape { high: Option<u16> },
    /// Among the four digits of an escape: those so far.
    Digits {
        high: Option<u16>,
        count: u8,
        code: u16,
    },
}

/// What some put before a text.
pub(super) const MARK: &[u8; 3] = b"\xef\xbb\xbf";

const PLAIN: Part = Part::Plain { high: None };

impl Json {
    /// Nothing has come yet. Of a key or a scalar up to `token_max` bytes are kept, and told.
    pub(super) const fn new(token_max: usize) -> Self {
        Self {
            state: State::Mark(0),
            depth: 0,
            kinds: 0,
            token: Vec::new(),
            token_max,
            whole: true,
        }
    }

    /// Another text begins.
    pub(super) fn begin(&mut self) {
        self.state = State::Mark(0);
        self.depth = 0;
        self.kinds = 0;
    }

    /// The next piece. Once it is malformed, it stays so.
    pub(super) fn feed(&mut self, piece: &[u8], see: &mut impl See) -> Result<(), Malformed> {
        let mut rest = piece;
        while let Some((byte, after)) = rest.split_first() {
            rest = match self.state {
                State::Text {
                    is_key,
                    part: Part::Plain { high: None },
                } => self.plain_text(rest, is_key, see),
                _ => {
                    // A number ends with what is no part of it.
                    let is_taken = self.byte(*byte, see);
                    if is_taken { after } else { rest }
                }
            };
            if self.state == State::Broken {
                return Err(Malformed);
            }
        }
        Ok(())
    }

    /// Nothing more comes. Whether it was all of a value.
    pub(super) fn end(&mut self, see: &mut impl See) -> Result<(), Malformed> {
        if self.state == State::Number {
            self.number_is_over(see);
        }
        if self.state == State::Over {
            Ok(())
        } else {
            Err(Malformed)
        }
    }

    /// Takes the characters of a text up to one that means something.
    fn plain_text<'p>(&mut self, piece: &'p [u8], is_key: bool, see: &mut impl See) -> &'p [u8] {
        let end = piece
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\' | ..0x20))
            .unwrap_or(piece.len());
        let (plain, rest) = piece.split_at_checked(end).unwrap_or((piece, &[]));
        self.keep(plain);
        match rest.split_first() {
            None => rest,
            Some((byte, rest)) => {
                self.text_byte(*byte, is_key, PLAIN, see);
                rest
            }
        }
    }

    /// Takes a byte; `false` if it is to be looked at again.
    fn byte(&mut self, byte: u8, see: &mut impl See) -> bool {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.state = match (self.state, byte) {
            (State::Text { is_key, part }, _) => {
                self.text_byte(byte, is_key, part, see);
                return true;
            }
            (State::Mark(count), _) if MARK.get(count) == Some(&byte) => match count + 1 {
                3 => State::Value,
                count => State::Mark(count),
            },
            (State::Mark(0), _) => {
                self.state = State::Value;
                return false;
            }
            (State::Number, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') => {
                self.keep(&[byte]);
                return true;
            }
            (State::Number, _) => {
                self.number_is_over(see);
                return false;
            }
            (State::Word, _) => {
                self.word_byte(byte, see);
                return true;
            }
            (state, _) if is_space => state,
            (State::FirstItem, b']') | (State::FirstKey, b'}') => {
                self.close(byte == b']', see);
                return true;
            }
            (State::Value | State::FirstItem, _) => {
                self.begin_value(byte, see);
                return true;
            }
            (State::FirstKey | State::Key, b'"') => {
                self.begin_token();
                State::Text {
                    is_key: true,
                    part: PLAIN,
                }
            }
            (State::Colon, b':') => State::Value,
            (State::Next, b',') if self.in_array() => State::Value,
            (State::Next, b',') => State::Key,
            (State::Next, b']' | b'}') => {
                self.close(byte == b']', see);
                return true;
            }
            _ => State::Broken,
        };
        true
    }

    fn begin_value(&mut self, byte: u8, see: &mut impl See) {
        self.state = match byte {
            b'{' | b'[' => {
                self.open(byte == b'[', see);
                return;
            }
            b'"' => State::Text {
                is_key: false,
                part: PLAIN,
            },
            b'-' | b'0'..=b'9' => State::Number,
            b't' | b'f' | b'n' => State::Word,
            _ => State::Broken,
        };
        self.begin_token();
        if self.state == State::Number || self.state == State::Word {
            self.keep(&[byte]);
        }
    }

    fn open(&mut self, array: bool, see: &mut impl See) {
        if self.depth >= DEPTH_MAX {
            self.state = State::Broken;
            return;
        }
        self.depth += 1;
        self.kinds = (self.kinds << 1) | u128::from(array);
        self.state = if array {
            State::FirstItem
        } else {
            State::FirstKey
        };
        see.open(array);
    }

    fn close(&mut self, array: bool, see: &mut impl See) {
        if self.depth == 0 || self.in_array() != array {
            self.state = State::Broken;
            return;
        }
        self.depth -= 1;
        self.kinds >>= 1;
        see.close();
        self.value_is_over();
    }

    const fn in_array(&self) -> bool {
        self.kinds & 1 == 1
    }

    const fn value_is_over(&mut self) {
        self.state = if self.depth == 0 {
            State::Over
        } else {
            State::Next
        };
    }

    fn number_is_over(&mut self, see: &mut impl See) {
        let token = self.token();
        // Of one that was cut nobody knows.
        if token.whole && !is_number(token.bytes) {
            self.state = State::Broken;
            return;
        }
        see.scalar(Scalar::Number(token));
        self.value_is_over();
    }

    fn word_byte(&mut self, byte: u8, see: &mut impl See) {
        self.keep(&[byte]);
        match self.token.as_slice() {
            b"true" | b"false" | b"null" => {
                see.scalar(Scalar::Word);
                self.value_is_over();
            }
            begun
                if [&b"true"[..], b"false", b"null"]
                    .iter()
                    .any(|word| word.starts_with(begun)) => {}
            _ => self.state = State::Broken,
        }
    }

    /// Takes a byte of a text.
    fn text_byte(&mut self, byte: u8, is_key: bool, part: Part, see: &mut impl See) {
        let part = match part {
            Part::Plain { .. } if byte < 0x20 => None,
            Part::Plain { high } => match byte {
                b'\\' => Some(Part::Escape { high }),
                b'"' => {
                    self.keep_half(high);
                    self.text_is_over(is_key, see);
                    return;
                }
                _ => {
                    self.keep_half(high);
                    self.keep(&[byte]);
                    Some(PLAIN)
                }
            },
            Part::Escape { high } => self.escape(byte, high),
            Part::Digits { high, count, code } => self.digit(byte, high, count, code),
        };
        self.state = part.map_or(State::Broken, |part| State::Text { is_key, part });
    }

    /// Takes the byte behind a backslash.
    fn escape(&mut self, byte: u8, high: Option<u16>) -> Option<Part> {
        let meant = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                return Some(Part::Digits {
                    high,
                    count: 0,
                    code: 0,
                });
            }
            _ => return None,
        };
        self.keep_half(high);
        self.keep(&[meant]);
        Some(PLAIN)
    }

    /// Takes a digit of an escape.
    fn digit(&mut self, byte: u8, high: Option<u16>, count: u8, code: u16) -> Option<Part> {
        let digit = u16::try_from(char::from(byte).to_digit(16)?).ok()?;
        let code = (code << 4) | digit;
        if count < 3 {
            let count = count + 1;
            return Some(Part::Digits { high, count, code });
        }
        if let (Some(high), 0xDC00..=0xDFFF) = (high, code) {
            let pair = char::decode_utf16([high, code]).next();
            self.keep_char(pair.and_then(Result::ok));
            return Some(PLAIN);
        }
        self.keep_half(high);
        if (0xD800..=0xDBFF).contains(&code) {
            return Some(Part::Plain { high: Some(code) });
        }
        self.keep_char(char::from_u32(code.into()));
        Some(PLAIN)
    }

    fn text_is_over(&mut self, is_key: bool, see: &mut impl See) {
        let token = self.token();
        if is_key {
            see.key(token);
            self.state = State::Colon;
        } else {
            see.scalar(Scalar::Text(token));
            self.value_is_over();
        }
    }

    fn token(&self) -> Token<'_> {
        Token {
            bytes: &self.token,
            whole: self.whole,
        }
    }

    fn begin_token(&mut self) {
        self.token.clear();
        self.whole = true;
    }

    /// Half of a surrogate pair that stays alone.
    fn keep_half(&mut self, high: Option<u16>) {
        if high.is_some() {
            self.keep_char(None);
        }
    }

    fn keep_char(&mut self, char: Option<char>) {
        let char = char.unwrap_or(char::REPLACEMENT_CHARACTER);
        self.keep(char.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.token_max.saturating_sub(self.token.len());
        match bytes.get(..room) {
            Some(some) if some.len() < bytes.len() => {
                self.token.extend_from_slice(some);
                self.whole = false;
            }
            _ => self.token.extend_from_slice(bytes),
        }
    }
}
