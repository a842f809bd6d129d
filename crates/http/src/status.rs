//! Response statuses of a file server.

use becket_proto::labelled;

labelled! {
/// Status of a response; the label is the status code and its reason phrase (RFC 9110, section 15).
pub enum StatusCode {
    Ok = "200 OK",
    /// The body is the requested part of the file.
    PartialContent = "206 Partial Content",
    /// Redirect to a folder with a trailing slash, or to `https`.
    MovedPermanently = "301 Moved Permanently",
    /// The client's copy is current.
    NotModified = "304 Not Modified",
    /// The request is not valid HTTP.
    BadRequest = "400 Bad Request",
    /// The system denies access to the file, or the path is a folder without an index.
    Forbidden = "403 Forbidden",
    /// No file exists at the path.
    NotFound = "404 Not Found",
    /// The method is neither GET nor HEAD.
    MethodNotAllowed = "405 Method Not Allowed",
    PreconditionFailed = "412 Precondition Failed",
    /// The request announces a body.
    ContentTooLarge = "413 Content Too Large",
    /// The first line exceeds the maximum length of a head.
    UriTooLong = "414 URI Too Long",
    /// The file has no byte of the requested range.
    RangeNotSatisfiable = "416 Range Not Satisfiable",
    /// The head exceeds its maximum length.
    FieldsTooLarge = "431 Request Header Fields Too Large",
    /// The file cannot be read.
    InternalServerError = "500 Internal Server Error",
    /// The body has a transfer coding.
    NotImplemented = "501 Not Implemented",
    /// Descriptors or memory are exhausted.
    ServiceUnavailable = "503 Service Unavailable",
    VersionNotSupported = "505 HTTP Version Not Supported",
}
}

impl StatusCode {
    /// Returns the three digits.
    #[must_use]
    pub fn number(self) -> &'static str {
        self.label().split_at(3).0
    }

    #[must_use]
    pub const fn is_error(self) -> bool {
        self as usize >= Self::BadRequest as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_the_statuses_from_400_on() {
        for status in StatusCode::ALL {
            assert_eq!(status.is_error(), status.number() >= "400", "{status:?}");
        }
    }
}
