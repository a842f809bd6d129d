//! Reads kept edits and applies them to the configuration.
//!
//! [`File::apply_edits`] adds and removes servers. Modes, weights, limits and addresses stay in [`File::edits`], because a server shows
//! the value of the configuration next to each of them. Certificates stay there, because they hide certificates of the configuration and
//! never become the default.

use std::path::{Path, PathBuf};

use crate::backend::ServerSection;
use crate::edits::{Edits, ServerAction, ServerEdit};
use crate::error::{Problem, Report};
use crate::file::File;
use crate::notation::ValueError;
use crate::read::{Reading, read_as};

impl Edits {
    /// Parses the file. Every problem has its line.
    pub fn read(text: &str) -> Reading<Self> {
        let mut reading: Reading<Self> = read_as(text, &toml::Table::new());
        let mut missing = Vec::new();
        if let Some(edits) = &reading.file {
            for (index, edit) in edits.server.iter().enumerate() {
                let keys = [
                    ("backend", edit.backend.is_empty()),
                    ("address", edit.address.is_none()),
                ];
                missing.extend(keys.map(|(key, is)| is.then(|| format!("server[{index}].{key}"))));
            }
            for (index, edit) in edits.certificate.iter().enumerate() {
                let keys = [
                    ("listener", edit.listener.is_empty()),
                    ("chain", edit.chain.is_empty()),
                    ("key", edit.key.is_empty()),
                ];
                missing.extend(
                    keys.map(|(key, is)| is.then(|| format!("certificate[{index}].{key}"))),
                );
            }
        }
        for path in missing.into_iter().flatten() {
            // A broken value is reported already.
            if !reading.places.is_cut(&path) {
                let mut problem = Problem::new(path, "missing");
                reading.places.place(&mut problem);
                reading.problems.push(problem);
            }
        }
        reading
    }
}

impl File {
    /// Returns the path of the kept edits of a configuration at this path.
    pub fn edits_path(&self, config: &Path) -> PathBuf {
        match &self.admin.edits {
            Some(path) => config.parent().unwrap_or(Path::new("")).join(path),
            None => config.with_extension("edits.toml"),
        }
    }

    /// Applies [`Self::edits`]. Returns a warning for each edit that has no place in this configuration; those of servers are dropped.
    pub fn apply_edits(&mut self) -> Vec<Problem> {
        let mut warnings = Vec::new();
        let servers = std::mem::take(&mut self.edits.server);
        let mut servers: Vec<(usize, ServerEdit)> = servers.into_iter().enumerate().collect();
        // The last server of a backend can be removed once another one was added.
        servers.sort_by_key(|(_, edit)| edit.action);
        for (index, edit) in servers {
            match self.apply_to_server(&edit) {
                Ok(()) => self.edits.server.push(edit),
                Err(fault) => {
                    warnings.push(Problem::new(
                        format!("{EDITS}.server[{index}]"),
                        fault.to_string(),
                    ));
                }
            }
        }
        for (index, edit) in self.edits.certificate.iter().enumerate() {
            let mut listeners = self.listener.iter();
            if !listeners.any(|it| it.name == edit.listener && it.ends_tls()) {
                let fault = "not used: there is no such listener with TLS any more";
                warnings.push(Problem::new(format!("{EDITS}.certificate[{index}]"), fault));
            }
        }
        warnings
    }

    fn apply_to_server(&mut self, edit: &ServerEdit) -> Result<(), ValueError> {
        let mut backends = self.backend.iter_mut();
        let backend = backends.find(|backend| backend.name == edit.backend);
        let backend = backend.ok_or("not used: there is no such backend any more")?;
        let is_it = |server: &ServerSection| server.address == edit.address;
        let is_there = backend.server.iter().any(is_it);
        if !is_there && edit.action != ServerAction::Add {
            return Err("not used: there is no such server any more".into());
        }
        if edit.action == ServerAction::Change {
            return Ok(());
        }
        let before = backend.clone();
        backend.server.retain(|server| !is_it(server));
        if edit.action == ServerAction::Add {
            let default = ServerSection::default();
            backend.server.push(ServerSection {
                address: edit.address.clone(),
                weight: edit.weight.unwrap_or(default.weight),
                maxconn: edit.maxconn.filter(|most| *most > 0),
                backup: edit.backup,
                ..default
            });
        }
        let [known, faults] = [&before, backend].map(|backend| {
            let mut report = Report::default();
            backend.check("", &mut report);
            report.errors
        });
        match faults.first() {
            Some(fault) if faults.len() > known.len() => {
                *backend = before;
                let why = "not used, because it does not fit the backend";
                Err(format!("{why}: {fault}").into())
            }
            _ => Ok(()),
        }
    }
}

/// First part of the key path of a problem of this file.
pub const EDITS: &str = "edits";

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        let text = "[[listener]]\nname = 'web'\nbind = [':1']\ncertificates = ['a.pem']\nbackend = 'app'\n\
            [[backend]]\nname = 'app'\nserver = [{ address = 'a:1', minconn = 1, maxconn = 5 }, { address = 'b:1' }]\n\
            [[backend]]\nname = 'one'\nserver = [{ address = 'a:1' }]\n\
            [[backend]]\nname = 'pages'\nfiles = { root = '/srv' }\n";
        File::parse(text).unwrap()
    }

    fn edits(text: &str) -> Edits {
        let reading = Edits::read(text);
        assert!(reading.problems.is_empty(), "{:?}", reading.problems);
        reading.file.unwrap()
    }

    fn applied(text: &str) -> (File, Vec<String>) {
        let mut file = file();
        file.edits = edits(text);
        let warnings = file.apply_edits();
        (file, warnings.iter().map(ToString::to_string).collect())
    }

    fn servers(file: &File, backend: usize) -> Vec<&str> {
        let servers = file.backend[backend].server.iter();
        servers
            .map(|it| &*it.address.as_ref().unwrap().text)
            .collect()
    }

    #[test]
    fn what_is_written_is_read_and_shown_in_a_line_each() {
        let text = "log-level = \"debug\"\n\n[[server]]\nbackend = \"app\"\naddress = \"a:1\"\naction = \"add\"\n\
            mode = \"drain\"\nweight = 9\nmaxconn = 0\naddresses = [\"10.0.0.1:1\", \"/run/a\"]\nbackup = true\n\n\
            [[certificate]]\nlistener = \"web\"\nchain = \"/c.pem\"\nkey = \"/k.pem\"\n";
        let edits = edits(text);
        assert_eq!(toml::to_string(&edits).unwrap(), text);
        let lines = [
            "server app/a:1: added, mode drain, weight 9, maxconn 0, addresses 10.0.0.1:1 /run/a, backup",
            "certificate of web: /c.pem",
            "log level: debug",
        ];
        assert_eq!(edits.lines(), lines);
    }

    #[test]
    fn a_fault_has_its_line_and_its_key() {
        let text = "[[server]]\nbackend = 'app'\nwait = 1\n[[server]]\nbackend = 'app'\naddress = 'a:1'\nweight = 257\n\
            addresses = ['a:1']\n[[certificate]]\nlistener = 'web'\nkey = 'k'\n";
        let problems = Edits::read(text).problems;
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        for start in [
            "line 3: server[0].wait: unknown key",
            "line 7: server[1].weight = 257: not in range",
            "line 8: server[1].addresses[0] = \"a:1\": a name",
            "line 1: server[0].address: missing",
            "line 9: certificate[0].chain: missing",
        ] {
            assert!(
                lines.iter().any(|line| line.starts_with(start)),
                "{lines:#?}"
            );
        }
        assert_eq!(lines.len(), 5, "{lines:#?}");
        assert!(
            File::parse("[edits]\n").is_err(),
            "they have a file of their own"
        );
    }

    #[test]
    fn servers_are_added_replaced_and_removed_in_any_order() {
        let (file, warnings) = applied(
            "[[server]]\nbackend = 'one'\naddress = 'a:1'\naction = 'remove'\n\
            [[server]]\nbackend = 'one'\naddress = 'z:1'\naction = 'add'\nweight = 7\n\
            [[server]]\nbackend = 'app'\naddress = 'a:1'\naction = 'add'\nmaxconn = 2\n\
            [[server]]\nbackend = 'app'\naddress = 'b:1'\nmode = 'drain'\n",
        );
        assert_eq!(warnings, [""; 0]);
        assert_eq!(servers(&file, 1), ["z:1"]);
        assert_eq!(servers(&file, 0), ["b:1", "a:1"]);
        assert_eq!(file.backend[1].server[0].weight, 7);
        let replaced = &file.backend[0].server[1];
        assert_eq!((replaced.maxconn, replaced.minconn), (Some(2), None));
        let removed: Vec<_> = file.edits.removed("one").map(|it| &*it.text).collect();
        assert_eq!(removed, ["a:1"]);
        assert!(file.edits.server("app", "b:1").is_some());
    }

    /// Every combination of edits of four servers, two of which are in the file, against a list of names.
    #[test]
    fn servers_are_those_of_a_list() {
        let text =
            "[[backend]]\nname = 'app'\nserver = [{ address = 's:1' }, { address = 's:2' }]\n";
        let actions = ["", "add", "remove", "change"];
        for code in 0..actions.len().pow(4) {
            let chosen = [0, 1, 2, 3].map(|at| actions[code / 4_usize.pow(at) % 4]);
            let named = || (1..=4).map(|number| format!("s:{number}")).zip(chosen);
            let with = |action| named().filter(move |(_, it)| *it == action).map(|it| it.0);
            let edit = |(name, action): (String, &str)| {
                format!("[[server]]\nbackend = 'app'\naddress = '{name}'\naction = '{action}'\n")
            };
            let mut file = File::parse(text).unwrap();
            let written = named().filter(|(_, action)| !action.is_empty());
            file.edits = edits(&written.map(edit).collect::<String>());
            let warnings = file.apply_edits().len();
            let (mut model, mut unused) = (vec!["s:1".to_owned(), "s:2".to_owned()], 0);
            for name in with("add") {
                model.retain(|one| *one != name);
                model.push(name);
            }
            for name in with("remove") {
                if model.len() > 1 && model.contains(&name) {
                    model.retain(|one| *one != name);
                } else {
                    unused += 1;
                }
            }
            unused += with("change").filter(|name| !model.contains(name)).count();
            assert_eq!(
                (servers(&file, 0), warnings),
                (model.iter().map(String::as_str).collect(), unused),
                "{chosen:?}"
            );
        }
    }

    #[test]
    fn an_edit_without_a_place_is_a_warning_and_changes_nothing() {
        let (changed, warnings) = applied(
            "[[server]]\nbackend = 'gone'\naddress = 'a:1'\n\
            [[server]]\nbackend = 'app'\naddress = 'gone:1'\nweight = 1\n\
            [[server]]\nbackend = 'one'\naddress = 'a:1'\naction = 'remove'\n\
            [[server]]\nbackend = 'pages'\naddress = 'a:1'\naction = 'add'\n\
            [[certificate]]\nlistener = 'gone'\nchain = 'c'\nkey = 'k'\n",
        );
        let starts = [
            "edits.server[3]: not used, because it does not fit the backend",
            "edits.server[2]: not used, because it does not fit the backend",
            "edits.server[0]: not used: there is no such backend",
            "edits.server[1]: not used: there is no such server",
            "edits.certificate[0]: not used: there is no such listener",
        ];
        assert_eq!(warnings.len(), starts.len(), "{warnings:#?}");
        for (warning, start) in warnings.iter().zip(starts) {
            assert!(warning.starts_with(start), "{warning}");
        }
        assert_eq!(changed.backend, file().backend);
        assert!(changed.edits.server.is_empty());
    }

    #[test]
    fn the_file_is_next_to_the_configuration_or_where_that_says() {
        let path = |text: &str| {
            let file = File::parse(text).unwrap();
            file.edits_path(Path::new("/etc/becket/becket.toml"))
        };
        assert_eq!(path(""), Path::new("/etc/becket/becket.edits.toml"));
        assert_eq!(path("admin.edits = 'a'"), Path::new("/etc/becket/a"));
        assert_eq!(path("admin.edits = '/var/a'"), Path::new("/var/a"));
    }
}
