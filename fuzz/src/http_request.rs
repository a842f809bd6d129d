//! HTTP requests for files. Results do not depend on how a request is split, no path leaves the directory, no range
//! exceeds the file, and no request injects a line into the answer.

use becket_http::answer::{After, Answer};
use becket_http::coding::accepted;
use becket_http::head::{Request, blank, check_line, end, parse, too_long};
use becket_http::path::decode;
use becket_http::select::{Representation, Selected, date_text, select};
use becket_http::status::StatusCode;

/// The first byte chooses the length and modification time of the file; the rest is the request.
///
/// Returns 1 if the request names a file, otherwise 0.
///
/// # Panics
///
/// If a property in the description of this module is violated.
pub fn run(data: &[u8]) -> usize {
    let [file, said @ ..] = data else {
        return 0;
    };
    let said = &said[blank(said)..];
    let Some(length) = find_end(said) else {
        return 0;
    };
    let head = match parse(&said[..length]) {
        Ok(head) => head,
        Err(status) => {
            assert!(status.is_error());
            return 0;
        }
    };
    let request = match head.request() {
        Ok(request) => request,
        Err(refusal) => {
            assert!(refusal.status.is_error());
            return 0;
        }
    };
    let _codings = accepted(&head);
    check_names(&request);
    let len = u64::from(file & 15) * 100;
    let file = Representation {
        etag: "\"1-2\"",
        modified: NOW - u64::from(file >> 4),
        len,
    };
    let selected = select(&head, request.head_only, &file, NOW);
    if let Selected::Part(part) = &selected {
        assert!(part.start < part.end && part.end <= len && !request.head_only);
        let mut text = String::new();
        let answer = Answer {
            status: StatusCode::PartialContent,
            date: &date_text(NOW),
            fields: &[],
            length: Some(part.end - part.start),
            range: Some((Some(part.clone()), len)),
            after: After::GoesOn,
        };
        answer.write(&mut text);
        assert_eq!(text.lines().count(), 5, "{text}");
    }
    1
}

/// Returns the length of the head. Asserts that every shorter prefix leads to the same length.
fn find_end(said: &[u8]) -> Option<usize> {
    let whole = end(said, 0);
    for searched in 0..said.len().min(MOST_PIECES) {
        let before = end(&said[..searched], 0);
        assert!(
            before.is_none() || before == whole,
            "the end of the head changed"
        );
        assert!(
            before.is_some() || end(said, searched) == whole,
            "searched {searched}"
        );
        if let (Err(status), Some(length)) = (check_line(&said[..searched], 0), whole) {
            let refused = parse(&said[..length]).map(|_| ());
            assert_eq!(refused, Err(status), "rejected early but not in full");
        }
    }
    assert!(whole.is_some() || too_long(said).is_error());
    whole
}

/// Asserts that paths stay below the directory, and that redirects are one line and lead to the same host.
fn check_names(request: &Request<'_>) {
    assert!(request.path.starts_with('/'));
    for line in request
        .location(8443)
        .into_iter()
        .chain([request.with_slash()])
    {
        assert!(line.bytes().all(|byte| byte.is_ascii_graphic()), "{line:?}");
    }
    if let Ok(path) = decode(request.path) {
        let names: Vec<&[u8]> = path.bytes.split(|byte| *byte == b'/').collect();
        let is_good = |(index, name): (usize, &&[u8])| match name {
            [b'.', ..] => index == 0 && *name == b".well-known",
            name => !name.is_empty() && !name.contains(&0),
        };
        assert!(
            path.bytes.is_empty() || names.iter().enumerate().all(is_good),
            "{path:?}"
        );
        assert!(
            !request.with_slash().starts_with("//"),
            "redirects to another host"
        );
    }
}

/// The current time in this target.
const NOW: u64 = 1_700_000_000;
/// Limit on tested prefixes, because each needs a search.
const MOST_PIECES: usize = 300;
