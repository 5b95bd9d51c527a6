use std::io::{Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{Error, Result};

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It connected.
    Client,
    /// It listened.
    Server,
}

const MAGIC: &[u8; 8] = b"FBRAND01";
const NONCE: usize = 32;
const PROOF: usize = 32;

/// Proves to the peer that this process knows the secret of the job, and lets the peer prove it: a challenge and an HMAC each
/// way, so that the secret itself never travels, and a proof is of no use on another connection or for another purpose.
///
/// `purpose` is what the connection is for, the same at both ends, such as `store`. Reads and writes must have timeouts of
/// their own. The client learns nothing that it can use before the server has its proof, and the other way round.
///
/// # Errors
///
/// If the peer knows another secret, speaks another protocol, or is gone.
pub(crate) fn authenticate(
    stream: &mut (impl Read + Write),
    secret: &[u8],
    purpose: &str,
    side: Side,
    peer: &str,
) -> Result<()> {
    let mut mine = [0; NONCE];
    getrandom::fill(&mut mine)
        .map_err(|error| Error::system("there are no random numbers for a handshake", error))?;
    let lost = |error: std::io::Error| Error::Connect {
        what: format!("{peer} did not complete the handshake"),
        reason: error.to_string(),
    };
    let proof = |side: Side, client: &[u8], server: &[u8]| {
        let mut mac = mac(secret);
        mac.update(MAGIC);
        mac.update(match side {
            Side::Client => b"client",
            Side::Server => b"server",
        });
        mac.update(client);
        mac.update(server);
        mac.update(purpose.as_bytes());
        mac
    };
    let refused = || Error::Secret {
        what: peer.to_owned(),
        hint: "give every rank the same FIREBRAND_SECRET, or a FIREBRAND_SECRET_FILE with the same content"
            .to_owned(),
    };
    match side {
        Side::Client => {
            let mut hello = [0; MAGIC.len() + NONCE];
            hello[..MAGIC.len()].copy_from_slice(MAGIC);
            hello[MAGIC.len()..].copy_from_slice(&mine);
            stream.write_all(&hello).map_err(lost)?;
            let mut answer = [0; NONCE + PROOF];
            stream.read_exact(&mut answer).map_err(lost)?;
            let (theirs, tag) = answer.split_at(NONCE);
            proof(Side::Server, &mine, theirs)
                .verify_slice(tag)
                .map_err(|_| refused())?;
            let tag = proof(Side::Client, &mine, theirs).finalize().into_bytes();
            stream.write_all(&tag).map_err(lost)?;
            let mut accepted = [0; 1];
            stream.read_exact(&mut accepted).map_err(lost)?;
        }
        Side::Server => {
            let mut hello = [0; MAGIC.len() + NONCE];
            stream.read_exact(&mut hello).map_err(lost)?;
            let (magic, theirs) = hello.split_at(MAGIC.len());
            if magic != MAGIC {
                return Err(Error::Protocol {
                    peer: peer.to_owned(),
                    reason: "it does not begin like a rank of Firebrand".to_owned(),
                });
            }
            let mut answer = [0; NONCE + PROOF];
            answer[..NONCE].copy_from_slice(&mine);
            answer[NONCE..].copy_from_slice(&proof(Side::Server, theirs, &mine).finalize().into_bytes());
            stream.write_all(&answer).map_err(lost)?;
            let mut tag = [0; PROOF];
            stream.read_exact(&mut tag).map_err(lost)?;
            proof(Side::Client, theirs, &mine)
                .verify_slice(&tag)
                .map_err(|_| refused())?;
            stream.write_all(&[1]).map_err(lost)?;
        }
    }
    Ok(())
}

fn mac(secret: &[u8]) -> Hmac<Sha256> {
    match Hmac::<Sha256>::new_from_slice(secret) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes a key of any length"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    fn meet(
        client: (&'static str, &'static str),
        server: (&'static str, &'static str),
    ) -> (Result<()>, Result<()>) {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        for stream in [&a, &b] {
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        let thread = std::thread::spawn(move || {
            let outcome = authenticate(&mut a, client.0.as_bytes(), client.1, Side::Client, "the server");
            drop(a);
            outcome
        });
        let outcome = authenticate(&mut b, server.0.as_bytes(), server.1, Side::Server, "the client");
        drop(b);
        (thread.join().unwrap(), outcome)
    }

    #[test]
    fn the_same_secret_and_purpose_meet() {
        let (client, server) = meet(("secret", "store"), ("secret", "store"));
        client.unwrap();
        server.unwrap();
    }

    #[test]
    fn another_secret_or_purpose_is_refused_and_the_secret_is_not_in_the_message() {
        for client in [("wrong", "store"), ("secret", "peer")] {
            let (client, server) = meet(client, ("secret", "store"));
            let error = client.unwrap_err();
            assert!(matches!(error, Error::Secret { .. }), "{error}");
            assert!(!error.to_string().contains("secret\""));
            assert!(server.is_err());
        }
    }

    #[test]
    fn garbage_is_refused() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        b.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        a.write_all(&[7; 100]).unwrap();
        let error = authenticate(&mut b, b"secret", "store", Side::Server, "a stranger").unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
}
