//! Keys and certificates, made by the program `openssl`; they end after two days.

use crate::{Folder, output};
use std::process::Command;

/// Makes `NAME.crt` and `NAME.key` in the folder, signed by `by` (a name made before) or by itself.
#[track_caller]
pub fn make(folder: &Folder, name: &str, by: Option<&str>, extensions: &str) {
    let config = format!(
        "[req]\ndistinguished_name = dn\nprompt = no\nx509_extensions = ext\n[dn]\nCN = {name}\n[ext]\n{extensions}\n"
    );
    let config = folder.write(&format!("{name}.cnf"), &config);
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    command.args(["-days", "2", "-config"]).arg(config);
    command.args(["-keyout", &folder.path(&format!("{name}.key")), "-out", &folder.path(&format!("{name}.crt"))]);
    if let Some(by) = by {
        command.args(["-CA", &folder.path(&format!("{by}.crt")), "-CAkey", &folder.path(&format!("{by}.key"))]);
    }
    output(&mut command);
}

#[track_caller]
pub fn authority(folder: &Folder, name: &str) {
    make(folder, name, None, "basicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign");
}

/// A server's certificate for this machine.
#[track_caller]
pub fn server(folder: &Folder, name: &str, by: &str) {
    let names = "subjectAltName = DNS:localhost,IP:127.0.0.1\nextendedKeyUsage = serverAuth";
    make(folder, name, Some(by), &format!("basicConstraints = critical,CA:FALSE\n{names}"));
}

/// A client's certificate with these names, as openssl writes them (`DNS:a,IP:10.0.0.1`).
#[track_caller]
pub fn client(folder: &Folder, name: &str, by: &str, names: &str) {
    let names = if names.is_empty() { String::new() } else { format!("subjectAltName = {names}\n") };
    let rest = "extendedKeyUsage = clientAuth";
    make(folder, name, Some(by), &format!("basicConstraints = critical,CA:FALSE\n{names}{rest}"));
}
