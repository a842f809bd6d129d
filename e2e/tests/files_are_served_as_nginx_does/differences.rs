//! Intended differences between the responses of becket and nginx, with reasons.

use super::Request;

/// Intended difference.
pub(super) struct Difference {
    /// Returns whether a request shows the difference.
    pub(super) shown_by: fn(&Request) -> bool,
    /// Parts that differ: `status`, `body`, or header fields.
    pub(super) in_what: &'static [&'static str],
    /// Section of the RFC, and the reason.
    pub(super) why: &'static str,
}

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        shown_by: |request| !matches!(request.method, "GET" | "HEAD"),
        in_what: &["status"],
        why: "RFC 9110, 15.5.6: either of two errors is valid; nginx searches for the file first",
    },
    Difference {
        shown_by: |request| !matches!(request.method, "GET" | "HEAD"),
        in_what: &["allow"],
        why: "RFC 9110, 15.5.6: a 405 response must list the allowed methods",
    },
    Difference {
        shown_by: |request| request.path == "/.hidden",
        in_what: &["status"],
        why: "RFC 9110, 17.3: files that do not belong to the site must be hidden from clients",
    },
    Difference {
        shown_by: |request| matches!(&*request.path, "/link.txt" | "/outside"),
        in_what: &["status"],
        why: "RFC 9110, 15.5.4: a server may answer 404 to hide a forbidden file",
    },
    Difference {
        shown_by: |request| request.path == "//a.txt",
        in_what: &["status"],
        why: "RFC 3986, 6.2: normalization does not remove empty segments",
    },
    Difference {
        shown_by: |request| request.path.contains("/../") || request.path.contains("/%2e%2e/"),
        in_what: &["status"],
        why: "RFC 3986, 5.2.4: the client removes dot segments before it sends a request",
    },
    Difference {
        shown_by: |request| request.path.contains("%2F"),
        in_what: &["status"],
        why: "RFC 3986, 2.2: an encoded slash does not separate segments",
    },
    Difference {
        shown_by: |request| request.method == "HEAD" && request.has("Range"),
        in_what: &["status"],
        why: "RFC 9110, 14.2: ranges are defined for GET only; other methods ignore the field",
    },
    Difference {
        shown_by: |request| request.value("If-Unmodified-Since") == Some("yesterday"),
        in_what: &["status"],
        why: "RFC 9110, 13.1.4: an invalid date is ignored",
    },
    Difference {
        shown_by: |request| request.has("If-Match") && request.has("If-Unmodified-Since"),
        in_what: &["status"],
        why: "RFC 9110, 13.1.4: with If-Match the date is ignored",
    },
    Difference {
        shown_by: |request| request.has("If-None-Match") && request.has("If-Modified-Since"),
        in_what: &["status"],
        why: "RFC 9110, 13.1.3: with If-None-Match the date is ignored",
    },
    Difference {
        shown_by: |request| request.path == "/empty.txt" && request.has("Range"),
        in_what: &["status"],
        why: "RFC 9110, 15.5.17: no byte of the range exists",
    },
    Difference {
        shown_by: |request| request.value("Range") == Some("bytes=0-1,3-4"),
        in_what: &["status"],
        why: "RFC 9110, 14.2: a server may ignore the field; several ranges are answered with the whole file",
    },
    Difference {
        shown_by: |request| {
            let range = request.value("Range");
            range.is_some_and(|range| INVALID.contains(&range))
        },
        in_what: &["status"],
        why: "RFC 9110, 14.2: an invalid field may be ignored or rejected",
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
        why: "RFC 9110, 12.5.3 and 8.4.1.3: `*` means every coding, and x-gzip is gzip",
    },
    Difference {
        shown_by: |request| request.path == "/style.css" && request.has("Accept-Encoding"),
        in_what: &["status", "accept-ranges"],
        why: "RFC 9110, 8.4: a compressed file is a representation and supports ranges",
    },
    Difference {
        shown_by: |request| request.has("Range"),
        in_what: &["accept-ranges"],
        why: "RFC 9110, 14.3: a server may announce ranges in a partial response as well",
    },
    Difference {
        shown_by: |request| request.path == "/style.css.gz",
        in_what: &["content-type"],
        why: "RFC 6713, 2: the type of a gzip file is application/gzip",
    },
    Difference {
        shown_by: |request| matches!(&*request.path, "/k.js" | "/k.mjs"),
        in_what: &["content-type"],
        why: "RFC 9239, 6: the type of scripts and modules is text/javascript; other types are obsolete",
    },
    Difference {
        shown_by: |_| true,
        in_what: &["vary"],
        why: "RFC 9110, 12.5.5: Vary is sent for every file that may have a variant",
    },
];

/// Invalid ranges.
const INVALID: [&str; 3] = ["bytes=2-1", "bytes=a-b", "bytes="];
