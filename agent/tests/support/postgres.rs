//! A PostgreSQL server's data in a folder, as Debian's package has the programs.

use super::{Folder, output, program};
use nix::unistd::{User, chown};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Data in the folder `data`, for a server with a socket beside it.
pub struct Cluster {
    folder: PathBuf,
    programs: PathBuf,
    user: User,
}

impl Cluster {
    /// Makes the data; the folder is the server's from now on.
    pub fn new(folder: &Folder) -> Cluster {
        // The path may have a link to it, and the server alone.
        let initdb = fs::canonicalize(program("initdb").expect("the package")).unwrap();
        let programs = initdb.parent().expect("its folder").to_owned();
        // The server refuses to run as root.
        let user = User::from_name("postgres").unwrap().expect("the package brings its user");
        chown(&folder.0, Some(user.uid), Some(user.gid)).unwrap();
        fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o700)).unwrap();
        let cluster = Cluster { folder: folder.0.clone(), programs, user };
        let mut command = cluster.as_user(Command::new(initdb));
        output(command.args(["--auth=trust", "--no-sync", "--pgdata"]).arg(cluster.data()));
        cluster
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// The server itself, by its program or a link to it: without TCP, with its socket in the folder.
    pub fn server(&self, command: Command) -> Command {
        let mut command = self.as_user(command);
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.folder).args(["-c", "listen_addresses="]);
        command
    }

    /// A client with the statements of a file.
    pub fn client(&self, mut psql: Command, statements: &Path) -> Command {
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--username", "postgres", "--dbname", "postgres"]);
        psql.arg("--host").arg(&self.folder).arg("--file").arg(statements);
        psql
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn as_user(&self, mut command: Command) -> Command {
        command.uid(self.user.uid.as_raw()).gid(self.user.gid.as_raw());
        command.current_dir(&self.folder).env("LC_ALL", "C");
        command
    }
}
