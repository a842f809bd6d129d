//! The PROXY header: decoding, and encoding of decoded headers.

use becket_proto::proxy_header::{Accept, Endpoints, Format, MAX_V2_BYTES, ProxyHeader, decode};

/// Checks one input. Returns the number of accepted formats, out of three, that find a header in it.
///
/// # Panics
///
/// If an answer changes as more bytes arrive, or if a header changes when it is written and read again.
pub fn run(data: &[u8]) -> usize {
    let mut read = 0;
    for accept in [Accept::V1, Accept::V2, Accept::Either] {
        let answer = decode(data, accept);
        for cut in [
            1,
            6,
            13,
            14,
            16,
            106,
            data.len() / 2,
            data.len().saturating_sub(1),
        ] {
            let early = decode(data.get(..cut).unwrap_or(data), accept);
            assert!(
                early == Ok(None) || early == answer,
                "{early:?} became {answer:?}"
            );
        }
        match answer {
            Ok(Some((header, len))) => {
                assert!(len <= data.len() && len <= MAX_V2_BYTES);
                round_trips(&header);
                read += 1;
            }
            Ok(None) => assert!(data.len() < MAX_V2_BYTES),
            Err(_) => {}
        }
    }
    read
}

fn round_trips(header: &ProxyHeader<'_>) {
    let mut bytes = Vec::new();
    header
        .encode(Format::V2, &mut bytes)
        .expect("what was read can be written");
    assert_eq!(read_back(&bytes, Accept::V2), *header);
    let mut line = Vec::new();
    header
        .encode(Format::V1, &mut line)
        .expect("version 1 never fails");
    let read = read_back(&line, Accept::V1);
    match header.endpoints {
        Endpoints::Tcp { .. } => assert_eq!(read.endpoints, header.endpoints),
        _ => assert_eq!(read.endpoints, Endpoints::Unknown),
    }
}

fn read_back(bytes: &[u8], accept: Accept) -> ProxyHeader<'_> {
    match decode(bytes, accept) {
        Ok(Some((header, len))) if len == bytes.len() => header,
        other => panic!("{other:?} from {bytes:?}"),
    }
}
