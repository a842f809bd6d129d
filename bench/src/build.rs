//! Builds nginx and HAProxy with AWS-LC, the crypto library of becket, so that a run compares programs and not libraries.
//!
//! AWS-LC comes from the C sources in becket's `aws-lc-sys` crate, and the servers from Debian's source packages. apt keeps
//! its lists below the output directory, so nothing else on the machine changes, and it checks their signatures.
//!
//! Each step is a shell script that runs in the directory `awslc-build`, with its output in a log file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use becket_load::clock;

use crate::peer::{self, Kind, Peer};
use crate::{Error, process};

#[derive(Debug, clap::Args)]
pub struct BuildArgs {
    /// Build nginx and HAProxy with AWS-LC, the crypto library of becket
    #[arg(long, required = true)]
    pub awslc: bool,
    /// Sources of nginx [default: Debian's newest]
    #[arg(long, value_name = "DIR")]
    pub nginx: Option<PathBuf>,
    /// Sources of HAProxy [default: Debian's newest]
    #[arg(long, value_name = "DIR")]
    pub haproxy: Option<PathBuf>,
    /// Sources of AWS-LC [default: those in becket's aws-lc-sys crate]
    #[arg(long, value_name = "DIR")]
    pub aws_lc: Option<PathBuf>,
    /// Directory for the programs [default: peers, next to becket-bench]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

impl BuildArgs {
    /// Builds the programs `nginx@awslc` and `haproxy@awslc`.
    ///
    /// # Errors
    /// [`Error::Peer`] with the failed step, the end of its log and a remedy.
    pub fn run(&self) -> Result<(), Error> {
        for (program, package) in TOOLS {
            if Command::new(program).arg("--version").output().is_err() {
                return Err(Error::Peer(format!(
                    "cannot build peers without `{program}`: apt-get install {package}"
                )));
            }
        }
        let library = match &self.aws_lc {
            Some(directory) => absolute(directory)?,
            None => crate_sources()?,
        };
        let out = match &self.out {
            Some(out) => absolute(out)?,
            None => peer::built()?,
        };
        let work = out.join("awslc-build");
        let failed = |e| Error::os(format!("cannot create {}", work.display()), e);
        if work.exists() {
            fs::remove_dir_all(&work).map_err(failed)?;
        }
        fs::create_dir_all(&work).map_err(failed)?;
        let build = Build { out, work };
        if self.nginx.is_none() || self.haproxy.is_none() {
            let lists = build.step("download lists of sources", &format!("{APT}{UPDATE}"), &[]);
            lists.map_err(|error| offline(error, "nginx DIR and --haproxy"))?;
        }
        build.sources("nginx", self.nginx.as_deref())?;
        build.sources("haproxy", self.haproxy.as_deref())?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = jobs.to_string();
        let library = library.display().to_string();
        build.step("build AWS-LC", LIBRARY, &[&jobs, &library])?;
        build.step("build nginx", NGINX, &[&jobs])?;
        build.finish(Kind::Nginx, "nginx/objs/nginx")?;
        build.step("build haproxy", HAPROXY, &[&jobs])?;
        build.finish(Kind::Haproxy, "haproxy/haproxy")
    }
}

struct Build {
    /// Directory of the finished programs.
    out: PathBuf,
    /// Directory of sources, objects and logs.
    work: PathBuf,
}

impl Build {
    /// Copies the sources of a program, because it is built inside of them. Without a directory, downloads them from the
    /// first suite that has them.
    fn sources(&self, name: &str, given: Option<&Path>) -> Result<(), Error> {
        if let Some(directory) = given {
            let directory = absolute(directory)?.display().to_string();
            return self.step(&format!("copy {name}"), COPY, &[name, &directory]);
        }
        let script = format!("{APT}{DOWNLOAD}");
        let from = |suite| {
            let step = format!("download {name} from Debian {suite}");
            self.step(&step, &script, &[name, suite])
        };
        from("sid")
            .or_else(|_| from("stable"))
            .map_err(|error| offline(error, name))
    }

    /// Moves a program to its place, and checks the library that it reports.
    fn finish(&self, kind: Kind, program: &str) -> Result<(), Error> {
        let name = format!("{}{}", kind.name(), peer::AWSLC);
        let place = self.out.join(&name);
        fs::rename(self.work.join(program), &place)
            .map_err(|e| Error::os(format!("cannot move {program} to {}", place.display()), e))?;
        let facts = Peer::find(&name, Some(place.clone()))?.describe();
        let (version, library) = (facts.version, facts.library);
        if !library.contains("AWS-LC") {
            return Err(Error::Peer(format!(
                "{name} has {library} instead of AWS-LC"
            )));
        }
        say(&format!("{}: {version} with {library}\n", place.display()));
        Ok(())
    }

    /// Runs a script with its output in a log file, and prints the time.
    fn step(&self, name: &str, script: &str, arguments: &[&str]) -> Result<(), Error> {
        let path = self.work.join(format!("{}.log", name.replace(' ', "-")));
        let log = File::create(&path).and_then(|file| Ok((file.try_clone()?, file)));
        let (output, errors) =
            log.map_err(|e| Error::os(format!("cannot write {}", path.display()), e))?;
        say(&format!("{name} ... "));
        let started = clock::now();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-ec", script, "sh"]).args(arguments);
        shell.current_dir(&self.work).stdin(Stdio::null());
        let status = shell.stdout(output).stderr(errors).status();
        let status = status.map_err(|e| Error::os("cannot start /bin/sh", e))?;
        if status.success() {
            let seconds = (clock::now() - started).as_secs_f64();
            say(&format!("{seconds:.0} s\n"));
            return Ok(());
        }
        say("failed\n");
        let (end, path) = (process::end_of(&path), path.display());
        Err(Error::Peer(format!(
            "cannot {name}; {path} ends with:{end}"
        )))
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path);
    absolute.map_err(|e| Error::os(format!("cannot use {}", path.display()), e))
}

/// Returns the C sources in the `aws-lc-sys` crate of the workspace in the current directory.
fn crate_sources() -> Result<PathBuf, Error> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    let output = cargo.stdin(Stdio::null()).output();
    let output = output.map_err(|e| Error::os("cannot start `cargo metadata`", e))?;
    in_metadata(&output.stdout).ok_or_else(|| {
        let why = String::from_utf8_lossy(&output.stderr);
        Error::Peer(format!(
            "`cargo metadata` does not list aws-lc-sys: run this in becket's repository, or use --aws-lc DIR\n{why}"
        ))
    })
}

/// Returns the C sources of AWS-LC from the output of `cargo metadata`.
fn in_metadata(text: &[u8]) -> Option<PathBuf> {
    let metadata: serde_json::Value = serde_json::from_slice(text).ok()?;
    let mut packages = metadata["packages"].as_array()?.iter();
    let found = packages.find(|package| package["name"] == "aws-lc-sys")?;
    let manifest = Path::new(found["manifest_path"].as_str()?);
    Some(manifest.with_file_name("aws-lc"))
}

fn offline(error: Error, name: &str) -> Error {
    Error::Peer(format!("{error}\nWithout a download, use --{name} DIR"))
}

fn say(text: &str) {
    drop(io::stderr().write_all(text.as_bytes()));
}

/// Programs that a build needs, with their Debian packages.
const TOOLS: [(&str, &str); 3] = [("cmake", "cmake"), ("c++", "g++"), ("make", "make")];

/// Function `apt` with its own directories. apt accepts a list after its last day, because only its signature matters.
const APT: &str = r#"
work=$PWD
apt() {
    apt-get -q -o Dir::State="$work/apt" -o Dir::Cache="$work/apt/cache" -o Dir::Etc::SourceList="$work/apt/sources" \
        -o Dir::Etc::SourceParts=/dev/null -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root "$@"
}
"#;
const UPDATE: &str = r#"
mkdir -p apt/lists/partial apt/cache/archives/partial
for suite in sid stable; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
done >apt/sources
apt update --error-on=any
"#;
const DOWNLOAD: &str = r#"
mkdir -p "$1" "$1-$2"
cd "$1-$2"
apt source --download-only --tar-only "$1/$2"
tar -xf ./*.orig.tar.* --strip-components=1 -C "../$1"
"#;
const COPY: &str = r#"
mkdir "$1"
cp -r "$2/." "$1"
"#;
const LIBRARY: &str = r#"
cmake -S "$2" -B objects -DBUILD_LIBSSL=ON -DBUILD_TESTING=OFF -DBUILD_TOOL=OFF -DDISABLE_GO=ON -DDISABLE_PERL=ON \
    -DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib
cmake --build objects --parallel "$1"
cmake --install objects --prefix "$PWD/aws-lc"
"#;
/// A checkout of nginx has only `auto/configure`. Releases before 1.29.2 call a function that AWS-LC lacks, to check
/// certificates of clients.
const NGINX: &str = r#"
lc=$PWD/aws-lc
echo '#define SSL_SESSION_get0_hostname(session) NULL' >shim.h
cd nginx
[ ! -f auto/configure ] || cp auto/configure .
sh ./configure --with-http_ssl_module --with-stream --with-stream_ssl_module --with-stream_ssl_preread_module \
    --without-http_rewrite_module --without-http_gzip_module --with-cc-opt="-O2 -Wno-error -I$lc/include -include $PWD/../shim.h" \
    --with-ld-opt="-L$lc/lib -Wl,--no-as-needed -lstdc++"
make -j "$1"
"#;
const HAPROXY: &str = r#"
make -C haproxy -j "$1" TARGET=linux-glibc USE_OPENSSL_AWSLC=1 SSL_INC="$PWD/aws-lc/include" SSL_LIB="$PWD/aws-lc/lib" \
    ADDLIB=-lstdc++ haproxy
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_of_aws_lc_are_next_to_the_manifest_of_their_crate() {
        let metadata = r#"{"packages": [
            {"name": "aws-lc-rs", "manifest_path": "/registry/aws-lc-rs-1.19.0/Cargo.toml"},
            {"name": "aws-lc-sys", "manifest_path": "/registry/aws-lc-sys-0.47.0/Cargo.toml"}]}"#;
        let sources = Path::new("/registry/aws-lc-sys-0.47.0/aws-lc");
        assert_eq!(in_metadata(metadata.as_bytes()).as_deref(), Some(sources));
        assert_eq!(in_metadata(b"{\"packages\": []}"), None);
        assert_eq!(in_metadata(b""), None);
    }
}
