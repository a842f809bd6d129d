//! Runs the program that publishes TXT records for `dns-01`.
//!
//! The program is called as `HOOK present NAME VALUE` and `HOOK remove NAME VALUE`. It must exit
//! with 0 when authorities can see the record. Its environment has only `PATH`, its input and output
//! are closed, and its standard error is the log of the companion.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::error::Error;

/// Calls the hook, and waits for its exit.
pub async fn call(hook: &Path, action: &str, name: &str, value: &str) -> Result<(), Error> {
    let fault =
        |text: String| Error::Challenge(format!("hook {} {action} {name}: {text}", hook.display()));
    let mut command = Command::new(hook);
    command
        .args([action, name, value])
        .env_clear()
        .env("PATH", PATH);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.process_group(0).kill_on_drop(true);
    let started = command.spawn();
    let mut child = started.map_err(|error| fault(error.to_string()))?;
    match timeout(TIME_LIMIT, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(fault(status.to_string())),
        Ok(Err(error)) => Err(fault(error.to_string())),
        Err(_) => Err(fault(format!("killed after {} s", TIME_LIMIT.as_secs()))),
    }
}

/// Time limit for a call; servers of a zone may take minutes to publish a record.
const TIME_LIMIT: Duration = Duration::from_secs(300);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_hook_gets_its_arguments_and_a_clean_environment() {
        let folder = tempfile::tempdir().unwrap();
        let (hook, out) = (folder.path().join("hook"), folder.path().join("out"));
        let script = format!(
            "#!/bin/sh\necho \"$@ ${{HOME-unset}}\" >> {}\n",
            out.display()
        );
        fs::write(&hook, script + "test \"$1\" = present\n").unwrap();
        fs::set_permissions(&hook, Permissions::from_mode(0o755)).unwrap();
        call(&hook, "present", "_acme-challenge.a.test", "v")
            .await
            .unwrap();
        let error = call(&hook, "remove", "_acme-challenge.a.test", "v").await;
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("remove _acme-challenge.a.test: exit status: 1"),
            "{error}"
        );
        let written = fs::read_to_string(&out).unwrap();
        assert!(
            written.starts_with("present _acme-challenge.a.test v unset\n"),
            "{written}"
        );
        assert!(
            call(&folder.path().join("none"), "present", "a", "b")
                .await
                .is_err()
        );
    }
}
