//! A response, and its head as text.

use std::ops::Range;
use std::sync::Arc;

use becket_config::backend::FieldValue;
use becket_http::answer::{After, Answer, PLAIN_TEXT, note};
use becket_http::head::HeadRefusal;
use becket_http::select::{Selected, date_text};
use becket_http::status::StatusCode;

use becket_http::docroot::{AtPath, OpenFile};

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// Additional header lines.
    pub(super) fields: String,
    pub(super) content: Content,
    /// Sent range and total size of the file, for partial responses. The range is `None` if the
    /// requested range does not exist in the file.
    pub(super) range: Option<(Option<Range<u64>>, u64)>,
    /// `true` if the client uses HTTP/1.0.
    pub(super) is_old: bool,
    /// `true` if the client allows a persistent connection.
    pub(super) persists: bool,
}

#[derive(Debug)]
pub(super) enum Content {
    Nothing,
    Note,
    /// The answer to the challenge of an ACME authority.
    Text(Arc<str>),
    File(Arc<OpenFile>, Range<u64>),
}

impl Reply {
    /// Returns the head; `now` is the time in seconds since 1970.
    pub(super) fn head(&self, now: u64, hsts: Option<&FieldValue>, is_last: bool) -> String {
        let (own, length) = match &self.content {
            Content::Nothing => ("", None),
            Content::Note => (PLAIN_TEXT, Some(note(self.status).len() as u64)),
            Content::Text(text) => (PLAIN_TEXT, Some(text.len() as u64)),
            Content::File(_, rest) => ("", Some(rest.end - rest.start)),
        };
        let hsts = hsts.map(|value| format!("Strict-Transport-Security: {}\r\n", value.0));
        let answer = Answer {
            status: self.status,
            date: &date_text(now),
            fields: &[own, &self.fields, hsts.as_deref().unwrap_or_default()],
            length,
            range: self.range.clone(),
            after: if is_last {
                After::Ends
            } else if self.is_old {
                After::Stays
            } else {
                After::GoesOn
            },
        };
        let mut text = String::with_capacity(512);
        answer.write(&mut text);
        text
    }

    pub(super) fn refusing(refusal: HeadRefusal) -> Self {
        let fields = match refusal.status {
            StatusCode::MethodNotAllowed => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        Self {
            status: refusal.status,
            fields: fields.to_owned(),
            content: Content::Note,
            range: None,
            is_old: false,
            persists: refusal.persists,
        }
    }

    pub(super) fn at(mut self, location: &str) -> Self {
        self.fields = format!("Location: {location}\r\n");
        self
    }

    /// Sets the selected part of a file as the content, and sets the matching status and header
    /// lines.
    pub(super) fn with(mut self, file: Arc<OpenFile>, selected: Selected) -> Self {
        let len = file.len;
        let part = match selected {
            Selected::PreconditionFailed => {
                self.status = StatusCode::PreconditionFailed;
                return self;
            }
            Selected::Unsatisfiable => {
                self.status = StatusCode::RangeNotSatisfiable;
                self.range = Some((None, len));
                return self;
            }
            Selected::NotModified => {
                self.status = StatusCode::NotModified;
                self.fields = file.kept.clone();
                self.content = Content::Nothing;
                return self;
            }
            Selected::Whole => 0..len,
            Selected::Part(part) => {
                self.status = StatusCode::PartialContent;
                self.range = Some((Some(part.clone()), len));
                part
            }
        };
        self.fields = [&file.content, "Accept-Ranges: bytes\r\n", &file.kept].concat();
        self.content = Content::File(file, part);
        self
    }

    /// Sets an error page as the content, if the file was found.
    pub(super) fn showing(mut self, found: AtPath) -> Self {
        if let AtPath::File(file) = found {
            self.fields += &file.content;
            let whole = 0..file.len;
            self.content = Content::File(file, whole);
        }
        self
    }
}
