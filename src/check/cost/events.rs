//! Server-sent events and lines of JSON, cut anywhere: the text of each event goes on as it comes, and none of it is
//! kept.

use super::json::MARK;

/// How a stream is cut into texts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Framing {
    /// `text/event-stream`: what follows `data:`, up to an empty line.
    Events,
    /// A text a line.
    Lines,
}

/// What comes out of a stream.
pub(super) enum Part<'a> {
    /// Some of a text.
    Text(&'a [u8]),
    /// The text is over.
    End,
}

/// A stream, as far as it has come.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    framing: Framing,
    place: Place,
    /// Whether the last byte was a carriage return: a line feed then belongs to it.
    after_return: bool,
    /// Whether the event has a line of data.
    has_data: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    /// Where a line of text begins.
    Line,
    /// Where a line of an event begins; so many bytes of `data:` have come.
    Field(usize),
    /// Behind `data:`, where one space is no part of it.
    Space,
    /// In data.
    Data,
    /// In what is none.
    Other,
    /// At the very beginning, where a mark may stand: so many bytes of it have come.
    Mark(usize),
}

const DATA: &[u8] = b"data:";

impl Stream {
    pub(super) const fn new(framing: Framing) -> Self {
        Self {
            framing,
            place: Place::Mark(0),
            after_return: false,
            has_data: false,
        }
    }

    /// The next piece; `part` is told what comes out of it.
    pub(super) fn feed(&mut self, piece: &[u8], mut part: impl FnMut(Part<'_>)) {
        let mut rest = piece;
        while let Some((byte, after)) = rest.split_first() {
            if matches!(self.place, Place::Data | Place::Other) {
                let end = rest
                    .iter()
                    .position(|byte| matches!(byte, b'\r' | b'\n'))
                    .unwrap_or(rest.len());
                if let Some((line, at_end)) = rest.split_at_checked(end).filter(|_| end > 0) {
                    if self.place == Place::Data {
                        part(Part::Text(line));
                    }
                    self.after_return = false;
                    rest = at_end;
                    continue;
                }
            }
            rest = if self.byte(*byte, &mut part) {
                after
            } else {
                rest
            };
        }
    }

    /// Takes a byte; `false` if it is to be looked at again.
    fn byte(&mut self, byte: u8, part: &mut impl FnMut(Part<'_>)) -> bool {
        let begins = std::mem::take(&mut self.after_return);
        match (self.place, byte) {
            (Place::Mark(count), _) if MARK.get(count) == Some(&byte) => {
                self.place = if count + 1 == MARK.len() {
                    self.line()
                } else {
                    Place::Mark(count + 1)
                };
            }
            (Place::Mark(0), _) => {
                self.place = self.line();
                return false;
            }
            (Place::Mark(_), _) => {
                self.place = Place::Other;
                return false;
            }
            (_, b'\n') if begins => {}
            (_, b'\r' | b'\n') => {
                self.after_return = byte == b'\r';
                self.line_is_over(part);
            }
            (Place::Field(count), _) if DATA.get(count) == Some(&byte) => {
                self.place = Place::Field(count + 1);
                if count + 1 == DATA.len() {
                    self.data_begins(part);
                    self.place = Place::Space;
                }
            }
            (Place::Line, _) => {
                self.has_data = true;
                self.place = Place::Data;
                return false;
            }
            (Place::Field(_), _) => self.place = Place::Other,
            (Place::Space, _) => {
                self.place = Place::Data;
                return byte == b' ';
            }
            // Taken by the line.
            (Place::Data | Place::Other, _) => {}
        }
        true
    }

    /// Where a line begins.
    const fn line(&self) -> Place {
        match self.framing {
            Framing::Events => Place::Field(0),
            Framing::Lines => Place::Line,
        }
    }

    fn line_is_over(&mut self, part: &mut impl FnMut(Part<'_>)) {
        let is_empty = self.place == Place::Field(0);
        // A line of this name alone is data, and empty.
        if self.place == Place::Field(DATA.len() - 1) {
            self.data_begins(part);
        }
        if (is_empty || self.framing == Framing::Lines) && std::mem::take(&mut self.has_data) {
            part(Part::End);
        }
        self.place = self.line();
    }

    fn data_begins(&mut self, part: &mut impl FnMut(Part<'_>)) {
        if std::mem::replace(&mut self.has_data, true) {
            part(Part::Text(b"\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of a stream that comes in pieces of `size` bytes.
    fn texts(framing: Framing, stream: &str, size: usize) -> Vec<String> {
        let mut texts = Vec::new();
        let mut text = Vec::new();
        let mut it = Stream::new(framing);
        for piece in stream.as_bytes().chunks(size) {
            it.feed(piece, |part| match part {
                Part::Text(some) => text.extend_from_slice(some),
                Part::End => texts.push(String::from_utf8(std::mem::take(&mut text)).unwrap()),
            });
        }
        // What has come of an event that is not over.
        if !text.is_empty() {
            texts.push(String::from_utf8(text).unwrap());
        }
        texts
    }

    #[test]
    fn an_event_is_its_lines_of_data_however_the_stream_is_cut() {
        for (stream, expected) in [
            ("data: a\n\ndata: b\n\n", &["a", "b"] as &[&str]),
            ("data:a\r\n\r\ndata:b\r\n\r\n", &["a", "b"]),
            ("data:a\r\rdata:b\r\r", &["a", "b"]),
            ("\u{feff}data: a\n\n", &["a"]),
            ("data: {\ndata: }\n\n", &["{\n}"]),
            ("data:  a\n\n", &[" a"]),
            ("data\n\n", &[""]),
            ("data:\n\n", &[""]),
            ("data\ndata\n\n", &["\n"]),
            (": comment\nevent: x\nid: 1\nretry: 5\ndata: a\n\n", &["a"]),
            (": data: a\n\ndatas: b\n\ndat\n\n xdata: c\n\n", &[]),
            ("event: x\n\ndata: a\n\n\n\n", &["a"]),
            ("data: a\nevent: x\ndata: b\n\n", &["a\nb"]),
            ("data: a: b\n\ndata: [DONE]\n\n", &["a: b", "[DONE]"]),
            ("data: a\n\ndata: b\n", &["a", "b"]),
            ("data: a", &["a"]),
            ("", &[]),
        ] {
            for size in 1..=stream.len().max(1) {
                let found = texts(Framing::Events, stream, size);
                assert_eq!(found, expected, "{stream:?} by {size}");
            }
        }
    }

    #[test]
    fn a_line_is_a_text_however_the_stream_is_cut() {
        for (stream, expected) in [
            (
                "{\"a\":1}\n{\"a\":2}\n",
                &["{\"a\":1}", "{\"a\":2}"] as &[&str],
            ),
            ("data: 1\r\n\r\n2", &["data: 1", "2"]),
            ("\n\n", &[]),
        ] {
            for size in 1..=stream.len() {
                let found = texts(Framing::Lines, stream, size);
                assert_eq!(found, expected, "{stream:?} by {size}");
            }
        }
    }
}
