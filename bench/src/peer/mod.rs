//! Defines the measured servers and starts them with equal settings.
//!
//! Equal settings are: TLS version, cipher suite, groups, certificate, a session cache of 200 000 entries, a backlog of
//! 4096, the number of workers, no access log, and one backend over TCP. Every run checks the negotiated parameters.
//!
//! A new peer needs a variant of [`Kind`] and a file in this directory.

mod becket;
mod haproxy;
mod hitch;
mod nginx;
mod site;
mod stunnel;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use self::site::Site;
use self::site::first_words;
use crate::Error;
use crate::process::{self, Process};
use crate::result;
use crate::scenario::OLD;
use crate::store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the column in reports: the kind, or `KIND@WORD` for another build.
    pub name: String,
    pub kind: Kind,
    pub program: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Becket,
    Hitch,
    Haproxy,
    Nginx,
    Stunnel,
}

#[derive(Debug)]
pub struct Server {
    pub name: String,
    pub address: SocketAddr,
    pub process: Process,
    pub configuration: String,
    /// Second server that the measured one needs: a node of its cluster or a file server.
    pub companion: Option<Box<Self>>,
}

impl Kind {
    /// All kinds, in the order of the report.
    pub const ALL: [Self; 5] = [
        Self::Becket,
        Self::Hitch,
        Self::Haproxy,
        Self::Nginx,
        Self::Stunnel,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Becket => "becket",
            Self::Hitch => "hitch",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Stunnel => "stunnel",
        }
    }

    fn remedy(self, name: &str) -> &'static str {
        match self {
            Self::Becket => "build it with `cargo build --profile dist -p becket`",
            _ if name.ends_with(AWSLC) => "build it with `becket-bench peers build --awslc`",
            _ => "apt-get install hitch haproxy nginx libnginx-mod-stream stunnel4",
        }
    }

    /// Returns the options before the configuration file that run the program in the foreground.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Becket => &["run", "--config"],
            Self::Hitch => &["--config"],
            Self::Haproxy => &["-db", "-f"],
            Self::Nginx => &["-e", "stderr", "-c"],
            Self::Stunnel => &[],
        }
    }

    pub fn serves_files(self) -> bool {
        matches!(self, Self::Becket | Self::Nginx)
    }
}

impl Peer {
    /// Finds the program of a peer: `program` if given, otherwise a file in the bench's directory, in `PATH` or in the
    /// usual directories.
    pub fn find(name: &str, program: Option<PathBuf>) -> Result<Self, Error> {
        let base = name.split('@').next().unwrap_or(name);
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == base);
        let kind = kind.ok_or_else(|| {
            let known = Kind::ALL.map(Kind::name).join(", ");
            Error::Asked(format!(
                "unknown peer `{name}` (accepted: {known}, each also with @WORD)"
            ))
        })?;
        // `peers build` keeps the suffix in the name of the file.
        let file = if name.ends_with(AWSLC) { name } else { base };
        let found = match program {
            Some(program) => Some(program).filter(|p| p.is_file()),
            None => {
                let mut files = places().into_iter().map(|place| place.join(file));
                files.find(|file| file.is_file())
            }
        };
        let program = found.ok_or_else(|| {
            Error::Peer(format!(
                "{name} is not installed: {}, or use --peer {file}=PATH",
                kind.remedy(name)
            ))
        })?;
        Ok(Self {
            name: name.to_owned(),
            kind,
            program: program.canonicalize().unwrap_or(program),
        })
    }

    #[must_use]
    pub fn renamed(&self, name: String) -> Self {
        Self {
            name,
            ..self.clone()
        }
    }

    /// Returns the program's version and TLS library, from its own output.
    pub fn describe(&self) -> result::PeerFacts {
        let said = |option| said(&self.program, option);
        let unknown = || "unknown".to_owned();
        let (version, library) = match self.kind {
            Kind::Becket => becket::version(&said("--version")),
            Kind::Hitch => hitch::version(&said("--version"), openssl()),
            Kind::Haproxy => haproxy::version(&said("-vv")),
            Kind::Nginx => nginx::version(&said("-V")),
            Kind::Stunnel => stunnel::version(&said("-version")),
        };
        result::PeerFacts {
            name: self.name.clone(),
            version: version.unwrap_or_else(unknown),
            library: library.unwrap_or_else(unknown),
            configuration: String::new(),
        }
    }

    /// Starts the program and waits until it listens.
    pub fn start(&self, site: &Site<'_>) -> Result<Server, Error> {
        let mut configuration = match self.kind {
            Kind::Becket => becket::configuration(site),
            Kind::Hitch => hitch::configuration(site),
            Kind::Haproxy => haproxy::configuration(site),
            Kind::Nginx => nginx::configuration(site, &said(&self.program, "-V")),
            Kind::Stunnel => stunnel::configuration(site),
        };
        if self.name == OLD {
            // Remove this key, because old builds of becket may not support it.
            configuration = configuration.replace(becket::HALF_OPEN, "");
        }
        let file = site.directory.join(format!("{}.conf", self.name));
        store::write(&file, &configuration)?;
        let mut command = Command::new(&self.program);
        command.args(self.kind.options()).arg(file);
        set_environment(&mut command, site)?;
        let log = site.directory.join(format!("{}.log", self.name));
        let mut process = Process::start(self.name.clone(), command, site.cpus, log)?;
        process.wait_for(site.address)?;
        Ok(Server {
            name: self.name.clone(),
            address: site.address,
            process,
            configuration: process::without_places(&configuration, site.directory),
            companion: None,
        })
    }
}

/// Sets environment variables for OpenSSL and AWS-LC. They hide CPU features, and make OpenSSL accept 1024-bit keys.
///
/// See OPENSSL_ia32cap(3) for the format: the first word masks CPUID leaf 1 and the second one leaf 7, with EDX or EBX
/// in the lower half and ECX in the upper half. `avx512` hides AVX-512 F, DQ, IFMA, CD, BW and VL, and VAES with
/// VPCLMULQDQ. `aes` hides AES-NI with PCLMULQDQ, and VAES with VPCLMULQDQ.
fn set_environment(command: &mut Command, site: &Site<'_>) -> Result<(), Error> {
    let mask = match site.settings.mask.as_str() {
        "avx512" => Some(":~0x600d0230000"),
        "aes" => Some("~0x200000200000000:~0x60000000000"),
        _ => None,
    };
    command.envs(mask.map(|mask| ("OPENSSL_ia32cap", mask)));
    if site.settings.key == "rsa1024" {
        let file = site.directory.join("openssl.cnf");
        store::write(&file, SMALL_KEYS)?;
        command.env("OPENSSL_CONF", file);
    }
    Ok(())
}

/// OpenSSL configuration that accepts keys of any size.
const SMALL_KEYS: &str = "openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = small\n[small]\nCipherString = DEFAULT:@SECLEVEL=0\n";

/// Suffix of the peers that `peers build` builds with AWS-LC.
pub const AWSLC: &str = "@awslc";

/// Returns the directory for peers that `peers build` builds.
pub fn built() -> Result<PathBuf, Error> {
    let own = std::env::current_exe();
    let own = own.map_err(|e| Error::os("cannot find the bench's own executable", e))?;
    Ok(own.with_file_name("peers"))
}

/// Returns the directories to search for programs, in order: the bench's directory, the one of built peers, `PATH`, and
/// the usual directories.
fn places() -> Vec<PathBuf> {
    let built = built().ok();
    let own = built.as_deref().and_then(Path::parent);
    let mut places: Vec<PathBuf> = own.into_iter().map(Path::to_owned).collect();
    places.extend(built.clone());
    if let Some(path) = std::env::var_os("PATH") {
        places.extend(std::env::split_paths(&path));
    }
    places.extend(["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from));
    places
}

/// Returns the version of the installed OpenSSL, for a program that does not report its library.
fn openssl() -> Option<String> {
    let version = first_words(&said(Path::new("openssl"), "version"), 2);
    Some(version).filter(|version| !version.is_empty())
}

/// Runs a program with an option that prints information, and returns its output, or an empty text if it does not start.
fn said(program: &Path, option: &str) -> String {
    let output = Command::new(program)
        .arg(option)
        .stdin(Stdio::null())
        .output();
    output.map_or_else(
        |_| String::new(),
        |o| String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr),
    )
}
