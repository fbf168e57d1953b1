//! `[admin]`.

use super::{Builder, value};
use crate::config::decode::At;
use crate::config::error::Code;
use crate::config::file::File;
use crate::config::values::FilePath;
use crate::config::{Admin, Token};

const MAKE_ONE: &str = "make one: openssl rand -hex 32 > admin_token";

impl Builder<'_> {
    pub(super) fn admin(&self, file: &File) -> Option<Option<Admin>> {
        let Some(written) = &file.admin else {
            return Some(None);
        };
        let written = &written.value;
        let address = value(&written.address)?;
        let token = match &written.token_file {
            Some(path) if self.io => Some(self.token(path)?),
            Some(_) => None,
            None if written.unread.contains(&"token_file") => return None,
            None if !address.ip().is_loopback() => {
                self.error(
                    Code::E018,
                    written.address.as_ref()?.place,
                    format!("whoever reaches `{address}` could change the gateway"),
                    "set admin.token_file, or an address on loopback: 127.0.0.1:9901",
                );
                return None;
            }
            None => None,
        };
        Some(Some(Admin { address, token }))
    }

    fn token(&self, path: &At<FilePath>) -> Option<Token> {
        let bytes = self.read_file(path)?;
        let token = Token::from_bytes(bytes.trim_ascii_end());
        if token.is_none() {
            self.error(
                Code::E051,
                path.place,
                format!(
                    "the token is not one line of at least {} letters, digits or marks",
                    Token::LENGTH_MIN
                ),
                MAKE_ONE,
            );
        }
        token
    }
}
