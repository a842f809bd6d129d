//! Chooses the response to a request: a file or a part of it, a redirect, or an error.

use std::ops::ControlFlow;
use std::rc::Rc;

use becket_http::coding::accepted;
use becket_http::head::Head;
use becket_http::path::decode;
use becket_http::select::select;
use becket_http::status::StatusCode;
use becket_sys::clock::Now;
use becket_tls::challenges::Challenges;

use super::reply::{Content, Reply};
use crate::backend::file_service::FileService;
use crate::backend::pool::Pool;
use becket_http::docroot::{AtPath, FileKey};

#[derive(Clone, Debug)]
pub(crate) enum Site {
    Files(Rc<Pool>),
    /// A redirect of every request to `https` at this port.
    Https(u16),
}

impl Site {
    /// Returns the service that finds files, or `None` for a redirect.
    pub(super) fn service(&self) -> Option<&FileService> {
        match self {
            Self::Files(pool) => pool.files(),
            Self::Https(_) => None,
        }
    }

    /// Returns the response to a request, or the key of the file that must first be looked up on
    /// disk.
    pub(super) fn decide(
        &self,
        head: &Head<'_>,
        found: Option<AtPath>,
        (challenges, now): (&Challenges, Now),
    ) -> ControlFlow<FileKey, Reply> {
        let is_old = head.is_old;
        let request = match head.request() {
            Ok(request) => request,
            Err(refusal) => {
                let reply = Reply::refusing(refusal);
                return ControlFlow::Continue(Reply { is_old, ..reply });
            }
        };
        let answer = |status| Reply {
            status,
            fields: String::new(),
            content: Content::Note,
            range: None,
            is_old,
            persists: request.persists,
        };
        if let Some(authorization) = challenges.http(request.path, now.mono) {
            let content = Content::Text(authorization);
            return ControlFlow::Continue(Reply {
                content,
                ..answer(StatusCode::Ok)
            });
        }
        let found = match (self, found) {
            (Self::Https(port), _) => {
                return ControlFlow::Continue(match request.location(*port) {
                    Some(location) => answer(StatusCode::MovedPermanently).at(&location),
                    None => answer(StatusCode::BadRequest),
                });
            }
            (Self::Files(_), Some(found)) => found,
            (Self::Files(pool), None) => match decode(request.path) {
                Err(status) => AtPath::Nothing(status),
                Ok(path) => {
                    let codings = accepted(head);
                    let wanted = FileKey { path, codings };
                    let service = pool.files();
                    match service.and_then(|service| service.find(&wanted, now.mono)) {
                        Some(found) => found,
                        None => return ControlFlow::Break(wanted),
                    }
                }
            },
        };
        ControlFlow::Continue(match found {
            AtPath::Nothing(status) => answer(status),
            AtPath::Folder => answer(StatusCode::MovedPermanently).at(&request.with_slash()),
            AtPath::File(file) => {
                let of = file.representation();
                let selected = select(head, request.head_only, &of, now.unix.as_secs());
                answer(StatusCode::Ok).with(file, selected)
            }
        })
    }
}
