//! A login over SSH with the latency of a far machine, of a server that only this test has.

use super::{Folder, output};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The server sees a home with the test's key in place of root's. The script gets the folder as `$0`.
const SERVER: &str = r#"mount --bind "$0/passwd" /etc/passwd && exec dropbear -i -m -s -r "$0/host""#;

/// A server and a way to it on which each byte takes a while, in both directions.
pub struct FarLogin {
    folder: Folder,
    address: SocketAddr,
    /// Bytes that came back, encrypted.
    received: Arc<AtomicU64>,
}

impl FarLogin {
    /// `delay` is the time of one way.
    pub fn with_delay(delay: Duration) -> FarLogin {
        let folder = Folder::new();
        let key = |name: &str| {
            let file = folder.path(name);
            output(Command::new("dropbearkey").args(["-t", "ed25519", "-f", &file]));
            output(Command::new("dropbearkey").args(["-y", "-f", &file]))
        };
        key("host");
        let public = key("key").lines().find(|line| line.starts_with("ssh-")).unwrap().to_owned();
        let home = folder.path("home");
        std::fs::create_dir_all(folder.path("home/.ssh")).unwrap();
        std::fs::write(folder.path("home/.ssh/authorized_keys"), public).unwrap();
        // The server refuses keys that others can write.
        output(Command::new("chmod").args(["-R", "go-rwx", &home]));
        std::fs::write(folder.path("passwd"), format!("root:x:0:0::{home}:/bin/sh\n")).unwrap();

        let received = Arc::new(AtomicU64::new(0));
        let near = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = near.local_addr().unwrap();
        let (path, count) = (folder.0.clone(), received.clone());
        std::thread::spawn(move || {
            for client in near.incoming().flatten() {
                let far = TcpListener::bind("127.0.0.1:0").unwrap();
                let to_server = TcpStream::connect(far.local_addr().unwrap()).unwrap();
                let stream = OwnedFd::from(far.accept().unwrap().0);
                let mut server = Command::new("unshare")
                    .args(["--mount", "sh", "-c", SERVER])
                    .arg(&path)
                    .stdin(Stdio::from(stream.try_clone().unwrap()))
                    .stdout(Stdio::from(stream))
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                std::thread::spawn(move || server.wait());
                delayed(client.try_clone().unwrap(), to_server.try_clone().unwrap(), delay, Arc::default());
                delayed(to_server, client, delay, count.clone());
            }
        });
        FarLogin { folder, address, received }
    }

    /// The command that runs another on the far side, in a terminal there.
    pub fn command(&self, far: &str) -> String {
        let (host, port, key) = (self.address.ip(), self.address.port(), self.folder.path("key"));
        format!("dbclient -y -y -q -t -i {key} -p {port} root@{host} '{far}'")
    }

    pub fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Passes bytes on, each a while after it came, until one side closes; counts them.
fn delayed(mut from: TcpStream, mut to: TcpStream, delay: Duration, count: Arc<AtomicU64>) {
    let (queue, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut chunk = [0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            if queue.send((Instant::now() + delay, chunk[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in waiting {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        _ = to.shutdown(Shutdown::Both);
    });
}
