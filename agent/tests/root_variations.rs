//! The verifier takes what the compiler makes, also of shapes that are rare, and also where the kernel lacks abilities that
//! this one has.

mod shapes;

use kstrobe::config::plan::{CompileError, ProbePlan, plan};
use kstrobe::kernel::{Loaded, Loader, Wanted, detect, load_unattached};
use kstrobe_config::model::{Probe, SourceFile};
use kstrobe_ebpf::kernel_target::Ability;
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Artifact, Target};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What it is called, and how it changes the target.
type Variation = (&'static str, fn(&mut Target));

/// What a kernel may lack, or have in plenty.
const VARIATIONS: [Variation; 12] = [
    ("this kernel", |_| {}),
    ("no tp_btf", |t| t.abilities.tp_btf = no()),
    ("no rdonly_cast", |t| t.abilities.rdonly_cast = no()),
    ("no task storage", |t| t.abilities.task_storage = no()),
    ("no task pointer", |t| t.abilities.current_task_btf = no()),
    ("no mmap", |t| t.abilities.mmapable = no()),
    ("no ring buffer", |t| t.abilities.ringbuf = no()),
    ("no atomic fetch", |t| t.abilities.atomic_fetch = no()),
    ("none of them", |t| {
        let a = &mut t.abilities;
        [
            &mut a.tp_btf,
            &mut a.rdonly_cast,
            &mut a.task_storage,
            &mut a.current_task_btf,
            &mut a.mmapable,
            &mut a.ringbuf,
            &mut a.atomic_fetch,
        ]
        .into_iter()
        .for_each(|ability| *ability = no());
    }),
    ("256 CPUs", |t| t.cpus = 256),
    // No bits of a CPU's number say which cache it has.
    ("4096 CPUs in caches of 12", |t| {
        t.cpus = 4096;
        t.caches = (0..4096).collect::<Vec<u32>>().chunks(12).map(<[u32]>::to_vec).collect();
    }),
    ("4096 CPUs without tp_btf", |t| {
        t.cpus = 4096;
        t.abilities.tp_btf = no();
    }),
];

fn no() -> Ability {
    Ability::No("not in this test".into())
}

fn parsed(name: &str, text: &str) -> Vec<Probe> {
    let (probes, diagnostics) =
        kstrobe_config::probes(&[Arc::new(SourceFile { name: name.into(), text: text.into() })]);
    let messages: Vec<_> = diagnostics.iter().map(|d| &d.message).collect();
    assert!(messages.is_empty(), "{name}: {messages:#?}");
    probes
}

fn shipped() -> Vec<Probe> {
    let (probes, diagnostics) = kstrobe_config::probes(&kstrobe_config::embedded());
    assert!(diagnostics.is_empty(), "{diagnostics:#?}");
    probes
}

fn look(plans: &[ProbePlan]) -> Target {
    let wanted = Wanted {
        tracepoints: plans.iter().flat_map(ProbePlan::tracepoints).collect(),
        syscalls: plans.iter().flat_map(ProbePlan::syscalls).collect(),
        functions: plans.iter().flat_map(ProbePlan::functions).collect(),
        counters: plans.iter().flat_map(ProbePlan::counters).collect(),
        ..Wanted::default()
    };
    let mut target = detect(&wanted);
    target.polls = kstrobe::kernel::pollers::row_types();
    target
}

fn loaded(loader: &mut Loader, artifact: &Artifact) -> Result<Loaded, String> {
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    load_unattached(loader, &artifact.object, &artifact.module.layout, &programs).map_err(|error| error.to_string())
}

fn messages(refusal: &CompileError) -> String {
    refusal.diagnostics.iter().map(|d| d.message.as_str()).collect::<Vec<_>>().join("; ")
}

/// Compiles and loads everything in every variation. A refusal for what the kernel lacks is right: which probes run on
/// which kernel is in docs/kernels.md. At least `least` of the probes must load in each.
fn all_load(probes: Vec<Probe>, least: usize) {
    let plans: Vec<ProbePlan> = probes.into_iter().map(plan).collect();
    let kernel = look(&plans);
    let mut loader = Loader::new();
    let (mut wrong, mut shared) = (Vec::new(), 0);
    for (name, change) in VARIATIONS {
        let mut target = kernel.clone();
        change(&mut target);
        let mut count = 0;
        for plan in &plans {
            let probe = &plan.meta().name;
            match plan.compile(&target) {
                Ok(artifact) if artifact.object.is_empty() => {}
                Ok(artifact) => match loaded(&mut loader, &artifact) {
                    Ok(_) => {
                        count += 1;
                        shared += artifact.module.layout.tables.iter().filter(|t| t.shards < target.cpus).count();
                    }
                    Err(error) => wrong.push(format!("{name}: {probe}: {error}")),
                },
                Err(refusal) if refusal.target => {}
                Err(refusal) => wrong.push(format!("{name}: {probe}: {}", messages(&refusal))),
            }
        }
        if count < least {
            wrong.push(format!("{name}: only {count} probes were loaded"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
    assert!(shared > 0, "no table had fewer shards than CPUs");
}

#[test]
#[ignore = "needs root"]
fn root_shipped_probes_load_whatever_the_kernel_lacks() {
    all_load(shipped(), 120);
}

#[test]
#[ignore = "needs root"]
fn root_rare_shapes_load_whatever_the_kernel_lacks() {
    all_load(parsed("shapes.yaml", shapes::YAML), 16);
}

/// A program at `softirq_entry`, whose only argument is a number that the test chooses: here a descriptor.
#[test]
#[ignore = "needs root"]
fn root_descriptors_lead_to_files_and_sockets() {
    let text = "probe: descriptors\nsummary: What lies behind a descriptor.\nat: rawtracepoint:softirq_entry\nmetrics:\n  \
                family: { type: gauge, value: u64(fd_sock(args.vec_nr).sk_family) }\n  \
                position: { type: gauge, value: fd_file(args.vec_nr).f_pos }\n  \
                socket: { type: gauge, value: fd_sock(args.vec_nr) != 0 }\n";
    let plans: Vec<ProbePlan> = parsed("descriptors.yaml", text).into_iter().map(plan).collect();
    let kernel = look(&plans);
    let mut loader = Loader::new();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    std::io::Seek::seek(&mut &file, std::io::SeekFrom::Start(4242)).expect("a seek");
    for rdonly_cast in [true, false] {
        let mut target = kernel.clone();
        target.abilities.tp_btf = no();
        if !rdonly_cast {
            target.abilities.rdonly_cast = no();
        }
        let artifact = plans[0].compile(&target).unwrap_or_else(|refusal| panic!("{}", messages(&refusal)));
        assert!(matches!(artifact.programs[0].attach, Attach::RawTp { .. }));
        let loaded = loaded(&mut loader, &artifact).expect("it loads");
        let ask = |fd: i32| -> [u64; 3] {
            loaded.test_run(&artifact.programs[0].name, &[fd as u64]).expect("it runs");
            let table = loaded.maps().table(0).expect("a table");
            [0, 2, 4].map(|word| table.values[word].load(Relaxed))
        };
        let inet = 2;
        assert_eq!(ask(socket.as_raw_fd()), [inet, 0, 1], "a socket, rdonly_cast {rdonly_cast}");
        assert_eq!(ask(file.as_raw_fd()), [0, 4242, 0], "a file, rdonly_cast {rdonly_cast}");
        assert_eq!(ask(1_000_000), [0, 0, 0], "nothing, rdonly_cast {rdonly_cast}");
        assert_eq!(ask(-1), [0, 0, 0], "no descriptor, rdonly_cast {rdonly_cast}");
    }
}
