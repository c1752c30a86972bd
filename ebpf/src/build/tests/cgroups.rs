//! Conditions on names of cgroups: what passes, and what is counted while that is not known.

use super::*;
use crate::layout::{PASSES, UNDECIDED};

fn term(name: CgroupName, values: &[&str], negated: bool) -> SelectorTerm {
    SelectorTerm { name, wanted: WantedNames::OneOf(values.iter().map(|value| (*value).to_owned()).collect()), negated }
}

#[test]
fn events_of_undecided_cgroups_do_not_pass_and_are_counted() {
    let selector = Selector { terms: vec![term(CgroupName::Namespace, &["shop"], false)] };
    let id = Box::new(node(Kind::Arg { offset: 0 }, Ty::U64));
    let filter = Some(node(Kind::Selected(id, selector), Ty::Bool));
    let mut probe = counter(8);
    let Shape::At(sites) = &mut probe.shape else { panic!("a counter at one place") };
    sites[0].filter = filter;
    let module = compiled(probe, &target(2));
    let mut m = machine(&module);
    let map = module.layout.selected[0].map;
    for (id, says) in [(7u64, PASSES), (8, UNDECIDED)] {
        assert!(m.insert(map, &id.to_le_bytes(), &says.to_le_bytes()));
    }
    let name = module.funcs[0].name.clone();
    for (id, times) in [(7, 3), (8, 4), (9, 5)] {
        (0..times).for_each(|_| run(&mut m, &module, &name, &[id, 1]));
    }
    let table = &module.layout.tables[0];
    let counted: u64 = (0..m.array(table.values).len() / 8).map(|at| word(m.array(table.values), at)).sum();
    assert_eq!((counted, lost(&m, &module, Loss::CgroupUndecided)), (3 * 7, 4));
}

#[test]
fn what_holds_for_a_pod_holds_for_all_in_it() {
    use CgroupName::*;
    for (terms, expected) in [
        (vec![term(Namespace, &["shop"], false)], true),
        (vec![term(Namespace, &["shop"], false), term(Pod, &["x"], true)], true),
        (vec![term(Workload, &["web", "db"], false)], true),
        // Holds outside of pods, too.
        (vec![term(Namespace, &["shop"], true)], false),
        (vec![term(Namespace, &["shop", ""], false)], false),
        // Differs between the containers of a pod.
        (vec![term(Namespace, &["shop"], false), term(Container, &["web"], true)], false),
        (vec![term(Unit, &["a.service"], false)], false),
    ] {
        let selector = Selector { terms };
        assert_eq!(selector.is_of_pods(), expected, "{selector}");
    }
}
