//! Messages between coordinator and agent, and their frames: a length of four bytes, then JSON.
//!
//! ```text
//! agent          Welcome        Ready | Refused       Pong       Starting         Done | Failed
//! coordinator             Run                  Ping        Start          [Stop]
//! ```

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::plan::Load;
use crate::schedule::Portion;

/// A message of the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    Run(RunOrder),
    Ping,
    /// Begin after this time.
    Start {
        in_us: u32,
    },
    /// End the run now and send what was measured.
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunOrder {
    /// Command line of the coordinator, without the name of the program.
    pub arguments: Vec<String>,
    /// Connections of all agents, because the default depends on the machine.
    pub connections: usize,
    /// Load of all agents. A program that uses this library may choose one that no command line describes.
    pub load: Load,
    pub warm_up: Duration,
    pub share: Portion,
}

/// A message of an agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// First message after the handshake. Versions must be equal.
    Welcome {
        version: String,
    },
    Ready,
    /// The run was not started.
    Refused {
        why: String,
    },
    Pong,
    /// Acknowledges [`Order::Start`] at once; its round trip bounds the error of the start.
    Starting,
    Done(Box<Outcome>),
    /// The run ended without a result.
    Failed {
        why: String,
    },
}

/// Appends a message to `frames`.
///
/// # Errors
/// The reason as text, if the message is longer than [`MOST_ANSWER`] or has a number that JSON cannot represent.
pub fn encode(message: &impl Serialize, frames: &mut Vec<u8>) -> Result<(), String> {
    let json = serde_json::to_vec(message).map_err(|e| e.to_string())?;
    let length = u32::try_from(json.len()).ok();
    let length = length.filter(|length| *length as usize <= MOST_ANSWER);
    let length = length.ok_or_else(|| format!("a message of {} bytes is too long", json.len()))?;
    frames.extend_from_slice(&length.to_be_bytes());
    frames.extend_from_slice(&json);
    Ok(())
}

/// Removes the first message from `frames`. Returns `None` if it is not complete.
///
/// # Errors
/// The reason as text, if the frame is longer than `most` bytes or is not a message.
pub fn decode<M: DeserializeOwned>(frames: &mut Vec<u8>, most: usize) -> Result<Option<M>, String> {
    let Some((length, rest)) = frames.split_first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > most {
        return Err(format!(
            "a message of {length} bytes (accepted: at most {most})"
        ));
    }
    let Some(json) = rest.get(..length) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(json).map_err(|e| format!("invalid message: {e}"))?;
    frames.drain(..LENGTH_BYTES + length);
    Ok(Some(message))
}

/// Maximum size of a message to an agent in bytes: a command line and 200 steps.
pub const MOST_ORDER: usize = 64 * 1024;
/// Maximum size of a message of an agent in bytes: the histograms of 200 steps.
pub const MOST_ANSWER: usize = 64 * 1024 * 1024;
const LENGTH_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_complete_incomplete_or_invalid() {
        let mut frames = Vec::new();
        encode(&Order::Start { in_us: 7 }, &mut frames).unwrap();
        encode(&Order::Ping, &mut frames).unwrap();
        let first = frames.len() - LENGTH_BYTES - "\"Ping\"".len();
        for end in 0..first {
            let mut part = frames[..end].to_vec();
            assert!(decode::<Order>(&mut part, 100).unwrap().is_none(), "{end}");
        }
        let start = decode(&mut frames, 100).unwrap();
        assert!(matches!(start, Some(Order::Start { in_us: 7 })));
        assert!(matches!(decode(&mut frames, 100), Ok(Some(Order::Ping))));
        assert!(frames.is_empty());
        for invalid in [&b"\0\0\0\x65"[..], b"\xff\xff\xff\xff", b"\0\0\0\x02{}"] {
            assert!(decode::<Order>(&mut invalid.to_vec(), 100).is_err());
        }
    }

    #[test]
    fn changed_messages_cause_no_panic() {
        let outcome = Outcome {
            steps: vec![Default::default()],
            ..Outcome::default()
        };
        let mut frame = Vec::new();
        encode(&Answer::Done(outcome.into()), &mut frame).unwrap();
        for seed in 0..5_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut changed = frame.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(4..changed.len());
                changed[at] = random.choice(*b"0123456789-.e[]{}\",\\\xff").unwrap();
            }
            if let Ok(Some(answer)) = decode::<Answer>(&mut changed, MOST_ANSWER) {
                assert!(matches!(answer, Answer::Done(_)));
            }
        }
    }
}
