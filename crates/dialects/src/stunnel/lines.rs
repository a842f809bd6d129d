//! Line ranges of services, used to find the service of an error.

use std::collections::BTreeMap;

use becket_config::error::Problem;

/// Reasons why services are not translated, by the number of the service in the file.
pub(super) type LeftOut = BTreeMap<usize, String>;

/// Line ranges by service; index 0 is the global part of the file.
#[derive(Debug, Default)]
pub(super) struct LinesOfServices(Vec<ServiceLines>);

#[derive(Debug)]
struct ServiceLines {
    file: Option<Box<str>>,
    first: usize,
    last: usize,
    service: usize,
}

impl LinesOfServices {
    pub(super) fn add(&mut self, file: Option<Box<str>>, line: usize, service: usize) {
        match self.0.last_mut() {
            Some(lines) if lines.service == service && lines.file == file => lines.last = line,
            _ => self.0.push(ServiceLines {
                file,
                first: line,
                last: line,
                service,
            }),
        }
    }

    pub(super) fn faulty(&self, problems: &[Problem]) -> LeftOut {
        let mut faulty = LeftOut::new();
        for problem in problems {
            let line = problem.line.unwrap_or_default();
            let is_of = |lines: &&ServiceLines| {
                lines.file == problem.file && (lines.first..=lines.last).contains(&line)
            };
            let found = self.0.iter().filter(is_of).map(|lines| lines.service);
            for service in found.filter(|service| *service > 0) {
                let why = faulty.entry(service).or_default();
                if !why.is_empty() {
                    *why += "; ";
                }
                *why += &problem.to_string();
            }
        }
        faulty
    }
}
