//! A small server that speaks PyTorch's protocol, for tests without PyTorch.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

type Values = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// Serves until the process ends. Returns where, and the values that are served.
pub(super) fn start() -> (SocketAddr, Values) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let values = Values::default();
    let served = Arc::clone(&values);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let values = Arc::clone(&served);
            thread::spawn(move || serve(stream, &values));
        }
    });
    (address, values)
}

fn serve(mut stream: TcpStream, values: &Values) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let [query] = array(&mut stream)?;
        match query {
            0 => assert_eq!(u32::from_le_bytes(array(&mut stream)?), 0x3C85_F7CE),
            1 => {
                let (key, value) = (bytes(&mut stream)?, bytes(&mut stream)?);
                values.lock().unwrap().insert(key, value);
            }
            2 => {
                let key = bytes(&mut stream)?;
                let (expected, desired) = (bytes(&mut stream)?, bytes(&mut stream)?);
                let mut values = values.lock().unwrap();
                let answer = match values.get(&key) {
                    // As PyTorch does, also where that is surprising.
                    None if !expected.is_empty() => expected,
                    Some(present) if *present != expected => present.clone(),
                    _ => {
                        values.insert(key, desired.clone());
                        desired
                    }
                };
                write_bytes(&mut stream, &answer)?;
            }
            3 => {
                let key = bytes(&mut stream)?;
                let value = values.lock().unwrap().get(&key).cloned();
                write_bytes(&mut stream, &value.unwrap_or_default())?;
            }
            4 => {
                let key = bytes(&mut stream)?;
                let amount = i64::from_le_bytes(array(&mut stream)?);
                let mut values = values.lock().unwrap();
                let old = values.get(&key).map_or(0, |value| {
                    std::str::from_utf8(value).unwrap().parse::<i64>().unwrap()
                });
                values.insert(key, (old + amount).to_string().into_bytes());
                stream.write_all(&(old + amount).to_le_bytes())?;
            }
            5 => {
                let count = u64::from_le_bytes(array(&mut stream)?);
                let keys = (0..count)
                    .map(|_| bytes(&mut stream))
                    .collect::<io::Result<Vec<_>>>()?;
                let values = values.lock().unwrap();
                let all = keys.iter().all(|key| values.contains_key(key));
                stream.write_all(&[u8::from(!all)])?;
            }
            8 => {
                let key = bytes(&mut stream)?;
                let deleted = i64::from(values.lock().unwrap().remove(&key).is_some());
                stream.write_all(&deleted.to_le_bytes())?;
            }
            13 => {
                let nonce: [u8; 4] = array(&mut stream)?;
                stream.write_all(&nonce)?;
            }
            other => panic!("query {other}"),
        }
    }
}

fn array<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; u64::from_le_bytes(array(stream)?) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write_bytes(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut message = (bytes.len() as u64).to_le_bytes().to_vec();
    message.extend_from_slice(bytes);
    stream.write_all(&message)
}
