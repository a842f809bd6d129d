//! Response statuses of a file server.

use becket_proto::labelled;

labelled! {
/// Status of a response; the label is the number.
pub enum StatusCode {
    Ok = "200",
    /// The body is the requested part of the file.
    PartialContent = "206",
    /// Redirect to a folder with a trailing slash, or to `https`.
    MovedPermanently = "301",
    /// The client's copy is current.
    NotModified = "304",
    /// The request is not valid HTTP.
    BadRequest = "400",
    /// The system denies access to the file, or the path is a folder without an index.
    Forbidden = "403",
    /// No file exists at the path.
    NotFound = "404",
    /// The method is neither GET nor HEAD.
    MethodNotAllowed = "405",
    PreconditionFailed = "412",
    /// The request announces a body.
    ContentTooLarge = "413",
    /// The first line exceeds the maximum length of a head.
    UriTooLong = "414",
    /// The file has no byte of the requested range.
    RangeNotSatisfiable = "416",
    /// The head exceeds its maximum length.
    FieldsTooLarge = "431",
    /// The file cannot be read.
    InternalServerError = "500",
    /// The body has a transfer coding.
    NotImplemented = "501",
    /// Descriptors or memory are exhausted.
    ServiceUnavailable = "503",
    VersionNotSupported = "505",
}
}

impl StatusCode {
    /// Returns the reason phrase (RFC 9110, section 15).
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::PartialContent => "Partial Content",
            Self::MovedPermanently => "Moved Permanently",
            Self::NotModified => "Not Modified",
            Self::BadRequest => "Bad Request",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not Found",
            Self::MethodNotAllowed => "Method Not Allowed",
            Self::PreconditionFailed => "Precondition Failed",
            Self::ContentTooLarge => "Content Too Large",
            Self::UriTooLong => "URI Too Long",
            Self::RangeNotSatisfiable => "Range Not Satisfiable",
            Self::FieldsTooLarge => "Request Header Fields Too Large",
            Self::InternalServerError => "Internal Server Error",
            Self::NotImplemented => "Not Implemented",
            Self::ServiceUnavailable => "Service Unavailable",
            Self::VersionNotSupported => "HTTP Version Not Supported",
        }
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
            assert_eq!(status.is_error(), status.label() >= "400", "{status:?}");
        }
    }
}
