//! Where becket does not answer as nginx does, and why.

use super::Request;

/// A difference that is meant.
pub(super) struct Difference {
    /// The requests that show it.
    pub(super) shown_by: fn(&Request) -> bool,
    /// What differs: `status`, `body`, or a field.
    pub(super) in_what: &'static [&'static str],
    /// The section, and what it says.
    pub(super) why: &'static str,
}

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        shown_by: |request| !matches!(request.method, "GET" | "HEAD"),
        in_what: &["status"],
        why: "RFC 9110, 15.5.6: of two errors either is right; nginx looks for the file first",
    },
    Difference {
        shown_by: |request| !matches!(request.method, "GET" | "HEAD"),
        in_what: &["allow"],
        why: "RFC 9110, 15.5.6: an answer of 405 has to say what is allowed",
    },
    Difference {
        shown_by: |request| request.path == "/.hidden",
        in_what: &["status"],
        why: "RFC 9110, 17.3: what the file system has beside the site is to be kept from clients",
    },
    Difference {
        shown_by: |request| matches!(&*request.path, "/link.txt" | "/outside"),
        in_what: &["status"],
        why: "RFC 9110, 15.5.4: a server that hides what is forbidden may say 404",
    },
    Difference {
        shown_by: |request| request.path == "//a.txt",
        in_what: &["status"],
        why: "RFC 3986, 6.2: no step of its normalization takes an empty segment away",
    },
    Difference {
        shown_by: |request| request.path.contains("/../") || request.path.contains("/%2e%2e/"),
        in_what: &["status"],
        why: "RFC 3986, 5.2.4: dot segments are taken away before a reference is used: by the client",
    },
    Difference {
        shown_by: |request| request.path.contains("%2F"),
        in_what: &["status"],
        why: "RFC 3986, 2.2: a slash that is encoded is not the one that separates segments",
    },
    Difference {
        shown_by: |request| request.method == "HEAD" && request.has("Range"),
        in_what: &["status"],
        why: "RFC 9110, 14.2: only GET has ranges; with another method the field is ignored",
    },
    Difference {
        shown_by: |request| request.value("If-Unmodified-Since") == Some("yesterday"),
        in_what: &["status"],
        why: "RFC 9110, 13.1.4: what is no date is ignored",
    },
    Difference {
        shown_by: |request| request.has("If-Match") && request.has("If-Unmodified-Since"),
        in_what: &["status"],
        why: "RFC 9110, 13.1.4: beside If-Match the date is ignored",
    },
    Difference {
        shown_by: |request| request.has("If-None-Match") && request.has("If-Modified-Since"),
        in_what: &["status"],
        why: "RFC 9110, 13.1.3: beside If-None-Match the date is ignored",
    },
    Difference {
        shown_by: |request| request.path == "/empty.txt" && request.has("Range"),
        in_what: &["status"],
        why: "RFC 9110, 15.5.17: no byte of the range is there",
    },
    Difference {
        shown_by: |request| request.value("Range") == Some("bytes=0-1,3-4"),
        in_what: &["status"],
        why: "RFC 9110, 14.2: a server may ignore the field; several parts are sent as the whole",
    },
    Difference {
        shown_by: |request| {
            let range = request.value("Range");
            range.is_some_and(|range| INVALID.contains(&range))
        },
        in_what: &["status"],
        why: "RFC 9110, 14.2: a field that is no range may be ignored or refused",
    },
    Difference {
        shown_by: |request| {
            let coding = request.value("Accept-Encoding");
            coding.is_some_and(|coding| matches!(coding, "*" | "x-gzip"))
        },
        in_what: &[
            "status",
            "content-encoding",
            "content-length",
            "content-range",
            "body",
        ],
        why: "RFC 9110, 12.5.3 and 8.4.1.3: a star is every coding, and x-gzip is gzip",
    },
    Difference {
        shown_by: |request| request.path == "/style.css" && request.has("Accept-Encoding"),
        in_what: &["status", "accept-ranges"],
        why: "RFC 9110, 8.4: a compressed file is a representation, which has ranges like any other",
    },
    Difference {
        shown_by: |request| request.has("Range"),
        in_what: &["accept-ranges"],
        why: "RFC 9110, 14.3: a server may say that it has ranges, with a part as well",
    },
    Difference {
        shown_by: |request| request.path == "/style.css.gz",
        in_what: &["content-type"],
        why: "RFC 6713, 2: what gzip has made is application/gzip",
    },
    Difference {
        shown_by: |request| matches!(&*request.path, "/k.js" | "/k.mjs"),
        in_what: &["content-type"],
        why: "RFC 9239, 6: scripts and modules are text/javascript; the other types are obsolete",
    },
    Difference {
        shown_by: |_| true,
        in_what: &["vary"],
        why: "RFC 9110, 12.5.5: what the answer depends on is said of every file that may have a variant",
    },
];

/// No ranges.
const INVALID: [&str; 3] = ["bytes=2-1", "bytes=a-b", "bytes="];
