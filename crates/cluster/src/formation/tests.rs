use super::*;

const LIST: [&str; 3] = ["a", "b", "c"];

fn node(name: &str) -> Formation {
    let own = Founder { name: name.into(), node: [name.as_bytes()[0]; 16] };
    Formation::new(own, LIST.map(String::from).to_vec(), None)
}

fn tell(from: &Formation, to: &mut Formation) {
    let bytes = from.announcement().encode();
    to.heard(Announcement::decode(&bytes, from.own.node).unwrap());
}

fn everybody_tells_everybody(nodes: &mut [Formation]) {
    for from in 0..nodes.len() {
        for to in 0..nodes.len() {
            if from != to {
                let bytes = nodes[from].announcement().encode();
                let node = nodes[from].own.node;
                nodes[to].heard(Announcement::decode(&bytes, node).unwrap());
            }
        }
    }
}

fn agree(node: &mut Formation, now: Duration) -> Agreement {
    let Some(Action::Agree(agreement)) = node.poll(now) else { panic!("it agrees") };
    assert_eq!(Agreement::decode(&agreement.encode()), Ok(agreement.clone()));
    node.agreed(agreement.clone());
    agreement
}

#[test]
fn three_nodes_begin_one_cluster() {
    let now = Duration::ZERO;
    let mut nodes = LIST.map(node);
    everybody_tells_everybody(&mut nodes);
    assert_eq!(nodes[1].poll(now), None, "the first one proposes");
    let agreement = agree(&mut nodes[0], now);
    assert_eq!(agreement.founders.len(), 3);
    assert_eq!(nodes[0].poll(now), None, "alone it is no majority");
    everybody_tells_everybody(&mut nodes);
    assert_eq!(agree(&mut nodes[1], now), agreement);
    everybody_tells_everybody(&mut nodes);
    assert_eq!(nodes[0].poll(now), Some(Action::Begin(agreement.clone())));
    assert_eq!(nodes[1].poll(now), Some(Action::Begin(agreement.clone())));
    assert_eq!(agree(&mut nodes[2], now), agreement);
    assert_eq!(nodes[2].poll(now), Some(Action::Begin(agreement)));
}

#[test]
fn a_minority_never_begins_and_two_of_three_only_after_some_time() {
    let mut alone = node("a");
    assert_eq!(alone.poll(GRACE * 100), None);
    let (mut b, c) = (node("b"), node("c"));
    tell(&c, &mut b);
    assert_eq!(b.poll(Duration::ZERO), None);
    assert_eq!(b.poll(GRACE / 2), None);
    assert_eq!(agree(&mut b, GRACE).founders.len(), 2);
}

#[test]
fn nodes_with_other_lists_do_not_begin_together() {
    let mut a = node("a");
    let own = Founder { name: "b".into(), node: [b'b'; 16] };
    let other = Formation::new(own, vec!["a".into(), "b".into()], None);
    tell(&other, &mut a);
    assert_eq!(a.poll(GRACE * 100), None);
    assert_eq!(a.poll(GRACE * 200), None);
}

#[test]
fn what_was_agreed_to_survives_a_restart_and_brings_the_others_in() {
    let mut nodes = LIST.map(node);
    everybody_tells_everybody(&mut nodes);
    let agreement = agree(&mut nodes[0], Duration::ZERO);
    // The proposer told b, then both were restarted, and b kept it.
    let own = nodes[1].own.clone();
    let b = Formation::new(own, LIST.map(String::from).to_vec(), Some(agreement.clone()));
    let mut a = node("a");
    tell(&b, &mut a);
    assert_eq!(agree(&mut a, Duration::ZERO), agreement, "a does not propose another");
    assert_eq!(a.poll(Duration::ZERO), Some(Action::Begin(agreement)));
}

#[test]
fn of_two_agreements_only_one_becomes_a_cluster() {
    // b and c found each other first; a came and heard of c late.
    let (mut b, mut c, mut a) = (node("b"), node("c"), node("a"));
    tell(&c, &mut b);
    tell(&b, &mut a);
    assert_eq!(b.poll(Duration::ZERO), None);
    let theirs = agree(&mut b, GRACE);
    assert_eq!(a.poll(Duration::ZERO), None);
    let own = agree(&mut a, GRACE);
    assert_ne!(own.cluster, theirs.cluster);
    tell(&b, &mut c);
    assert_eq!(agree(&mut c, GRACE), theirs);
    tell(&c, &mut b);
    assert_eq!(b.poll(GRACE), Some(Action::Begin(theirs.clone())));
    tell(&b, &mut a);
    assert_eq!(a.poll(GRACE), None, "nobody agreed to its own");
    b.standing = Standing::Member(theirs.cluster);
    tell(&b, &mut a);
    assert_eq!(a.poll(GRACE), Some(Action::StartOver(theirs.cluster)));
}

#[test]
fn a_node_that_comes_later_or_lost_its_disk_joins() {
    let mut member = node("a");
    member.standing = Standing::Member([9; 16]);
    let mut empty = node("b");
    tell(&member, &mut empty);
    assert_eq!(empty.poll(Duration::ZERO), Some(Action::Join([9; 16])));
}

#[test]
fn nobody_speaks_for_another() {
    let bytes = node("a").announcement().encode();
    assert!(Announcement::decode(&bytes, [b'b'; 16]).is_err());
    (0..bytes.len()).for_each(|end| assert!(Announcement::decode(&bytes[..end], [b'a'; 16]).is_err()));
}
