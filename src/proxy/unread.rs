//! How a request is answered that is never read as one.

use bytes::Bytes;

use crate::record::metrics::Fault;

/// Why it is not, and what is said of that.
pub(super) struct Unread {
    pub(super) fault: Fault,
    pub(super) status: u16,
    title: &'static str,
    detail: &'static str,
    /// The same for the record.
    pub(super) error: &'static str,
}

/// It cannot be parsed.
pub(super) const MALFORMED: Unread = Unread {
    fault: Fault::Malformed,
    status: 400,
    title: "Bad Request",
    detail: "The request is malformed.",
    error: "the request's head cannot be parsed",
};

/// It is a CONNECT.
pub(super) const NOT_ALLOWED: Unread = Unread {
    fault: Fault::Malformed,
    status: 405,
    title: "Method Not Allowed",
    detail: "CONNECT is not supported.",
    error: "the request's head cannot be parsed",
};

/// Its head did not come in time.
pub(super) const TOO_SLOW: Unread = Unread {
    fault: Fault::HeaderTimeout,
    status: 408,
    title: "Request Timeout",
    detail: "The request's head took too long.",
    error: "the request's head took too long",
};

/// Its head is larger than heads may be.
pub(super) const TOO_LARGE: Unread = Unread {
    fault: Fault::HeaderSize,
    status: 431,
    title: "Request Header Fields Too Large",
    detail: "The request's head is too large.",
    error: "the request's head is too large",
};

/// It came in the clear where TLS is spoken.
pub(super) const NOT_TLS: Unread = Unread {
    fault: Fault::TlsHandshake,
    status: 400,
    title: "Bad Request",
    detail: "This port speaks HTTPS: write https:// in the address.",
    error: "the request came in the clear where TLS is spoken",
};

impl Unread {
    /// The answer, whole: nothing of ours has been asked to put it together.
    pub(super) fn answer(&self) -> Bytes {
        let Self {
            status,
            title,
            detail,
            ..
        } = self;
        let body = format!(
            "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{status},\"detail\":\"{detail}\"}}"
        );
        Bytes::from(format!(
            "HTTP/1.1 {status} {title}\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_its_own_length() {
        for unread in [MALFORMED, NOT_ALLOWED, TOO_SLOW, TOO_LARGE, NOT_TLS] {
            let answer = String::from_utf8(unread.answer().to_vec()).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["status"], unread.status);
        }
    }
}
