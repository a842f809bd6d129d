//! The measures. Each puts one kind of load on all servers of a case, in interleaved rounds.

mod burst;
mod capacities;
mod capacity;
pub(crate) mod certificates;
mod client;
pub(crate) mod crowd;
mod delay;
mod failover;
mod generators;
mod idle;
mod latency;
mod marks;
mod overload;
pub(crate) mod queued;
pub(crate) mod rounds;
pub(crate) mod scraped;
mod stage;
mod stored;
mod storm;
mod transactions;

pub use self::capacities::Capacities;
pub(crate) use self::client::WARM_UP;
pub use self::stage::Stage;
use crate::order::LARGE;
use crate::result::Column;
use crate::scenario::{Measure, Settings};
use crate::{Error, figures};

pub fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let measured = match stage.measure {
        Measure::Transactions => transactions::run(stage),
        Measure::Capacity => overload::run(stage),
        Measure::AddedLatency => latency::run(stage),
        Measure::Idle => idle::run(stage),
        Measure::Crowd => crowd::run(stage),
        Measure::Certificates => certificates::run(stage),
        Measure::Queued => queued::run(stage),
        Measure::Scraped => scraped::run(stage),
        Measure::Storm => storm::run(stage),
        Measure::Burst => burst::run(stage),
        Measure::Generators => generators::run(stage),
        Measure::Failover => failover::run(stage),
        Measure::Store => stored::run(stage),
        Measure::Delay => delay::run(stage),
    };
    // If a server has exited, return an error with its log, which explains more than the error of the client.
    // The servers of a crowd exit, because they are drained.
    let drained = stage.measure == Measure::Crowd && measured.is_ok();
    if !drained && !matches!(measured, Err(Error::Stopped)) {
        stage.check_alive()?;
    }
    let mut columns = measured?;
    for column in &mut columns {
        if column.samples.is_empty() && column.missing().is_none() {
            *column = Column::without(&column.peer, column.notes.join("; "));
        }
        check_alike(stage.settings, column)?;
        check_resumed(stage.settings, column)?;
    }
    Ok(columns)
}

/// Returns an error if a server negotiated other parameters than the case requires.
fn check_alike(settings: &Settings, column: &Column) -> Result<(), Error> {
    let Some(agreed) = &column.negotiated else {
        return Ok(());
    };
    let wanted_suite = match settings.suite.as_str() {
        "aes256" => "AES_256_GCM",
        "chacha20" => "CHACHA20_POLY1305",
        _ => "AES_128_GCM",
    };
    let wanted_group = match settings.group.as_str() {
        "p256" => "secp256r1",
        other => other,
    };
    let group = agreed.group.as_deref();
    let group_differs = group.is_some_and(|group| !group.eq_ignore_ascii_case(wanted_group));
    let (version, suite) = (&agreed.version, &agreed.suite);
    let version_differs = version.strip_prefix("TLSv") != Some(settings.tls.as_str());
    if version_differs || !suite.contains(wanted_suite) || group_differs {
        return Err(Error::Unlike(format!(
            "{} negotiated {version}, {suite}, {} instead of TLS {}, {wanted_suite}, {wanted_group}: its figures would not be comparable",
            column.peer,
            group.unwrap_or("no group"),
            settings.tls
        )));
    }
    Ok(())
}

/// Drops the figures of a server that resumed far fewer sessions than requested, and records the reason. Skips cases
/// with large bodies, in which handshakes are few and their cost is negligible.
fn check_resumed(settings: &Settings, column: &mut Column) -> Result<(), Error> {
    if settings.body >= LARGE {
        return Ok(());
    }
    let asked = settings.asked_resumed()?;
    let Some(seen) = column.median(figures::RESUMED) else {
        return Ok(());
    };
    if asked > 0.0 && seen < asked / 10.0 {
        let reason = format!(
            "resumed {:.0} % of its handshakes instead of {:.0} %: its figures would not be comparable",
            seen * 100.0,
            asked * 100.0
        );
        *column = Column::without(&column.peer, reason);
    } else if (seen - asked).abs() > RESUMPTION_TOLERANCE {
        column.note(format!(
            "resumed {:.1} % of its handshakes instead of {:.1} %",
            seen * 100.0,
            asked * 100.0
        ));
    }
    Ok(())
}

/// Maximum difference between the actual and the requested share of resumptions. A difference occurs because each
/// client's first handshake is full.
const RESUMPTION_TOLERANCE: f64 = 0.03;
