//! Converts a datagram of stud or hitch to a session in the table, or to the reason for refusing it.
//!
//! The order of checks bounds the cost of a stranger's datagram: lengths, one HMAC, and only then the
//! contents. A session is stored only under the policy that the configuration names. It lives no longer than
//! the sender would resume it, no longer than `sessions.id-lifetime`, and no longer than `sessions.max-age`,
//! all counted from the full handshake by the sender's clock. So a recorded datagram is worthless once its
//! session has expired.
//!
//! Clocks of hosts differ, and hitch exits if a peer's clock is ahead. Here a session created up to [`AHEAD`]
//! in the future counts as created now; beyond that it is refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use becket_proto::session::{PolicyTag, Session};
use becket_proto::session_table::{Lives, Lookup, SessionTable};
use becket_proto::ticket::{Origin, OriginId, UnixSeconds};
use becket_sys::clock::Now;

use super::counts::{StudCounts, StudOutcome};
use super::datagram::Datagram;
use super::key::StudKey;
use super::session::{SessionFault, StudSession};
use super::state;

/// Conditions for accepting sessions of stud and hitch.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Local UDP address for datagrams from stud and hitch.
    pub listen: SocketAddr,
    pub key: StudKey,
    pub policy_name: String,
    /// Policy under which the sessions resume.
    pub policy: PolicyTag,
    /// IANA numbers of the policy's TLS 1.2 cipher suites.
    pub suites: Vec<u16>,
    /// `true` if the policy refuses sessions without extended master secret.
    pub require_ems: bool,
    /// Maximum lifetime of a session on this node.
    pub id_lifetime: Duration,
    /// Age since the full handshake after which a session is no longer resumed.
    pub max_age: Duration,
}

#[derive(Debug)]
pub(super) struct Intake {
    table: Arc<SessionTable>,
    counts: Arc<StudCounts>,
    pub(super) terms: Terms,
    key: hmac::Key,
}

impl Intake {
    pub(super) fn new(table: Arc<SessionTable>, counts: Arc<StudCounts>, terms: Terms) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, terms.key.expose());
        Self {
            table,
            counts,
            terms,
            key,
        }
    }

    pub(super) fn reload(&mut self, terms: Terms) {
        *self = Self::new(Arc::clone(&self.table), Arc::clone(&self.counts), terms);
    }

    /// Stores the datagram's session if the terms permit it, and counts the outcome.
    pub(super) fn take(&self, datagram: &[u8], now: Now) {
        let outcome = self.store(datagram, now).unwrap_or_else(|refused| refused);
        self.counts.count(outcome);
    }

    fn store(&self, datagram: &[u8], now: Now) -> Result<StudOutcome, StudOutcome> {
        let datagram = Datagram::parse(datagram).ok_or(StudOutcome::Malformed)?;
        // `hmac::verify` compares in constant time.
        hmac::verify(&self.key, datagram.sealed, datagram.mac).map_err(|_| StudOutcome::BadSeal)?;
        let session = StudSession::parse(datagram.der).map_err(outcome_of)?;
        if !datagram.is_of(session.id) {
            return Err(StudOutcome::Malformed);
        }
        self.check_terms(&session)?;
        let sent = u64::from(datagram.time);
        let made = session.time.map_or(sent, |time| time.min(sent));
        let life = self.life(made, session.timeout, now)?;
        let made_at = made.min(now.unix.as_secs());
        let state = state::encode(&session, made_at).ok_or(StudOutcome::ServerName)?;
        if self.holds(session.id, now) {
            return Ok(StudOutcome::Known);
        }
        let origin = Origin {
            id: origin_id(datagram.id),
            at: UnixSeconds(made_at),
        };
        let kept = Session::new(state, origin);
        let lives = Lives {
            now: now.mono,
            ttl: life,
        };
        let inserted = self
            .table
            .insert(self.terms.policy, session.id, kept, lives);
        inserted
            .stored
            .then_some(StudOutcome::Stored)
            .ok_or(StudOutcome::NotKept)
    }

    fn check_terms(&self, session: &StudSession<'_>) -> Result<(), StudOutcome> {
        if !self.terms.suites.contains(&session.suite) {
            return Err(StudOutcome::Suite);
        }
        if self.terms.require_ems && !session.extended_master_secret {
            return Err(StudOutcome::NoExtendedMasterSecret);
        }
        Ok(())
    }

    fn life(&self, made: u64, timeout: Option<u64>, now: Now) -> Result<Duration, StudOutcome> {
        let made = Duration::from_secs(made);
        if made > now.unix + AHEAD {
            return Err(StudOutcome::Clock);
        }
        let age = now.unix.saturating_sub(made);
        let timeout = timeout.map_or(Duration::MAX, Duration::from_secs);
        let longest = timeout.min(self.terms.id_lifetime).min(self.terms.max_age);
        let left = longest.saturating_sub(age);
        // The table stores whole seconds, so it would reject a shorter lifetime.
        let long_enough = left >= Duration::from_secs(1);
        long_enough.then_some(left).ok_or(StudOutcome::TooOld)
    }

    /// Returns `true` if the session is in the table. A recorded datagram may be replayed by an
    /// attacker, so only the first copy is stored.
    fn holds(&self, id: &[u8], now: Now) -> bool {
        let found = self.table.get(self.terms.policy, id, now.mono);
        matches!(found, Lookup::Hit(_))
    }
}

fn outcome_of(fault: SessionFault) -> StudOutcome {
    match fault {
        SessionFault::Malformed => StudOutcome::Malformed,
        SessionFault::Version => StudOutcome::Version,
        SessionFault::ClientCertificate => StudOutcome::ClientCertificate,
        SessionFault::Unsupported => StudOutcome::Unsupported,
    }
}

/// Derives the origin from the session ID, so that every host of the farm assigns the client to the same server. An ID
/// from OpenSSL is as random as an origin.
fn origin_id(id: &[u8; 32]) -> OriginId {
    let first = id.first_chunk().copied().unwrap_or_default();
    OriginId(u64::from_be_bytes(first))
}

/// Maximum time by which a sender's clock may be ahead of the clock of this host.
const AHEAD: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use becket_proto::session_table::Limits;
    use proptest::prelude::*;

    use super::*;
    use becket_sys::clock::Clock;

    const NOW: u64 = 1_800_000_000;
    const POLICY: PolicyTag = PolicyTag(7);
    const KEY: [u8; 20] = [3; 20];

    fn now() -> Now {
        Now {
            unix: Duration::from_secs(NOW),
            ..Clock::start().now()
        }
    }

    fn intake() -> Intake {
        let table = SessionTable::new(Limits::default(), Default::default());
        let terms = Terms {
            listen: ([127, 0, 0, 1], 1).into(),
            key: StudKey::new(KEY.into()),
            policy_name: "web".to_owned(),
            policy: POLICY,
            suites: vec![0xc030],
            require_ems: true,
            id_lifetime: Duration::from_secs(300),
            max_age: Duration::from_secs(300),
        };
        Intake::new(Arc::new(table), Arc::default(), terms)
    }

    fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
        assert!(contents.len() < 0x100);
        let len: &[u8] = match contents.len() {
            len if len < 0x80 => &[len as u8],
            len => &[0x81, len as u8],
        };
        [&[tag], len, contents].concat()
    }

    /// Returns a session with this time and these flags.
    fn der(suite: u16, time: u32, flags: u8) -> Vec<u8> {
        let parts = [
            element(0x02, &[1]),
            element(0x02, &[3, 3]),
            element(0x04, &suite.to_be_bytes()),
            element(0x04, &[5; 32]),
            element(0x04, &[6; 48]),
            element(0xa1, &element(0x02, &time.to_be_bytes())),
            element(0xa2, &element(0x02, &[0x01, 0x2c])),
            element(0xa6, &element(0x04, b"a.test")),
            element(0xad, &element(0x02, &[flags])),
        ];
        element(0x30, &parts.concat())
    }

    fn sealed(der: &[u8], time: u32) -> Vec<u8> {
        let mut datagram = [&[5; 32], der, &time.to_be_bytes()].concat();
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &KEY);
        let mac = hmac::sign(&key, &datagram);
        datagram.extend(mac.as_ref());
        datagram
    }

    fn made_at(time: u64) -> Vec<u8> {
        let time = time as u32;
        sealed(&der(0xc030, time, 1), time)
    }

    fn outcome(intake: &Intake, datagram: &[u8]) -> StudOutcome {
        intake
            .store(datagram, now())
            .unwrap_or_else(|refused| refused)
    }

    #[test]
    fn a_good_session_is_stored_once_and_under_its_policy_only() {
        let intake = intake();
        let datagram = made_at(NOW);
        assert_eq!(outcome(&intake, &datagram), StudOutcome::Stored);
        assert_eq!(outcome(&intake, &datagram), StudOutcome::Known);
        let found = intake.table.get(POLICY, &[5; 32], now().mono);
        let Lookup::Hit(session) = found else {
            panic!("{found:?}");
        };
        assert_eq!(session.origin.at, UnixSeconds(NOW));
        let other = intake.table.get(PolicyTag(8), &[5; 32], now().mono);
        assert!(matches!(other, Lookup::OtherPolicy), "{other:?}");
    }

    #[test]
    fn a_datagram_that_anyone_touched_is_refused_by_its_seal() {
        let intake = intake();
        let datagram = made_at(NOW);
        for at in 0..datagram.len() {
            let mut touched = datagram.clone();
            touched[at] ^= 1;
            assert_eq!(outcome(&intake, &touched), StudOutcome::BadSeal, "{at}");
        }
        assert!(intake.table.is_empty());
    }

    #[test]
    fn old_sessions_are_refused_and_young_ones_live_for_what_is_left() {
        let intake = intake();
        assert_eq!(outcome(&intake, &made_at(NOW - 300)), StudOutcome::TooOld);
        assert_eq!(outcome(&intake, &made_at(NOW - 290)), StudOutcome::Stored);
        let later = now().mono + Duration::from_secs(11);
        let found = intake.table.get(POLICY, &[5; 32], later);
        assert!(!matches!(found, Lookup::Hit(_)), "{found:?}");
    }

    #[test]
    fn a_clock_ahead_is_borne_within_bounds() {
        let ahead = AHEAD.as_secs();
        assert_eq!(
            outcome(&intake(), &made_at(NOW + ahead)),
            StudOutcome::Stored
        );
        let far = made_at(NOW + ahead + 1);
        assert_eq!(outcome(&intake(), &far), StudOutcome::Clock);
        assert_eq!(
            outcome(&intake(), &sealed(&der(0xc030, 0x7fff_ffff, 1), u32::MAX)),
            StudOutcome::Clock
        );
    }

    #[test]
    fn the_older_of_two_times_counts() {
        let fresh = (NOW as u32, NOW as u32 - 400);
        for (inside, outside) in [fresh, (fresh.1, fresh.0)] {
            let datagram = sealed(&der(0xc030, inside, 1), outside);
            assert_eq!(outcome(&intake(), &datagram), StudOutcome::TooOld);
        }
    }

    #[test]
    fn what_the_policy_does_not_have_is_refused() {
        let intake = intake();
        let time = NOW as u32;
        let suite = sealed(&der(0x009c, time, 1), time);
        assert_eq!(outcome(&intake, &suite), StudOutcome::Suite);
        let unbound = sealed(&der(0xc030, time, 0), time);
        assert_eq!(
            outcome(&intake, &unbound),
            StudOutcome::NoExtendedMasterSecret
        );
        assert_eq!(outcome(&intake, b"short"), StudOutcome::Malformed);
        let mut other = der(0xc030, time, 1);
        let at = other.windows(2).position(|two| two == [5, 5]).unwrap();
        other[at] = 4;
        assert_eq!(
            outcome(&intake, &sealed(&other, time)),
            StudOutcome::Malformed,
            "an ID inside that is not the one outside"
        );
    }

    #[test]
    fn without_a_table_nothing_is_kept() {
        let mut intake = intake();
        let limits = Limits {
            entries: 0,
            ..Limits::default()
        };
        intake.table = Arc::new(SessionTable::new(limits, Default::default()));
        assert_eq!(outcome(&intake, &made_at(NOW)), StudOutcome::NotKept);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        /// A session in the table never lives longer than any of its bounds permits, whatever the clocks show.
        #[test]
        fn no_life_is_longer_than_its_bounds(
            made in prop_oneof![any::<u64>(), NOW - 400..NOW + 100],
            timeout in proptest::option::of(any::<u64>()),
        ) {
            if let Ok(life) = intake().life(made, timeout, now()) {
                prop_assert!(made <= NOW + AHEAD.as_secs());
                let end = NOW + life.as_secs();
                prop_assert!(end <= made.min(NOW) + timeout.unwrap_or(300).min(300));
            }
        }
    }
}
