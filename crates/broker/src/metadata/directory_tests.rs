//! The directory: what a snapshot makes of it, and what is refused.

use std::sync::Arc;

use proptest::prelude::*;

use super::admin::{self, Gone};
use super::admin_op::{AdminOp, VhostInfo, tests::admin_op};
use super::apply::Applied;
use super::op::{Change, Op};
use super::snapshot;
use crate::auth::{Permission, Resource};
use crate::directory::Directory;
use amqp::{FieldTable, MethodId};
use queue::QueueId;
use storage::Index;

fn directory() -> Directory {
    Directory::new(Arc::default(), &[])
}

fn apply(directory: &Directory, vhost: &str, op: AdminOp) -> Result<Applied, amqp::Exception> {
    admin::apply(directory, vhost, &op).map(|(applied, _)| applied)
}

fn put_user(name: &str) -> AdminOp {
    AdminOp::PutUser { name: name.into(), password: None, tags: Vec::new() }
}

fn set_permissions(user: &str) -> AdminOp {
    AdminOp::SetPermissions { user: user.into(), configure: "".into(), write: "^w".into(), read: ".*".into() }
}

fn policy(name: &str, definition: &str) -> AdminOp {
    let value = format!(r#"{{"pattern":"^q","definition":{definition}}}"#);
    AdminOp::SetParameter { component: "policy".into(), name: name.into(), value: value.into() }
}

/// All of it, as text.
fn contents(directory: &Directory) -> Vec<String> {
    let mut builder = snapshot::Builder::new(Index(7), 2);
    builder.add_directory(directory);
    let bytes = builder.finish();
    let (_, index, changes) = snapshot::decode(&bytes).expect("it was just written");
    assert_eq!(index, Index(7));
    changes.map(|change| format!("{:?}", change.expect("it was just written"))).collect()
}

proptest! {
    #[test]
    fn a_snapshot_of_the_directory_gives_the_same_directory(
        changes in proptest::collection::vec((proptest::sample::select(vec!["", "/", "v"]), admin_op()), 1..40)
    ) {
        let live = directory();
        for (vhost, op) in changes {
            let refers_to_vhost = !vhost.is_empty() || !matches!(op, AdminOp::PutVhost(_));
            if refers_to_vhost {
                let _ = apply(&live, vhost, op);
            }
        }
        let mut builder = snapshot::Builder::new(Index(7), 2);
        builder.add_directory(&live);
        let bytes = builder.finish();
        let (_, _, changes) = snapshot::decode(&bytes).expect("it was just written");
        let restored = directory();
        for change in changes {
            let Change { vhost, op: Op::Admin(op) } = change.expect("it was just written") else { unreachable!() };
            prop_assert!(admin::apply(&restored, &vhost, &op).is_ok(), "every change of a snapshot makes something");
        }
        prop_assert_eq!(contents(&restored), contents(&live));
    }
}

#[test]
fn users_and_what_belongs_to_them_come_and_go() {
    let directory = directory();
    assert!(apply(&directory, "v", set_permissions("u")).is_err(), "there is no virtual host");
    apply(&directory, "v", AdminOp::PutVhost(VhostInfo::default())).expect("made");
    assert!(apply(&directory, "v", set_permissions("u")).is_err(), "there is no user");
    apply(&directory, "", put_user("u")).expect("made");
    apply(&directory, "v", set_permissions("u")).expect("set");
    let may = |permission| {
        let access = directory.access();
        access.authorize("u", "v", Resource::Queue("w1"), permission, MethodId::NONE).is_ok()
    };
    assert!(may(Permission::Write) && may(Permission::Read) && !may(Permission::Configure));

    let limits = AdminOp::SetParameter {
        component: "user-limits".into(),
        name: "u".into(),
        value: r#"{"max-channels":3}"#.into(),
    };
    apply(&directory, "", limits).expect("set");
    assert_eq!(directory.user_limits("u").max_channels, Some(3));

    let (applied, consequences) =
        admin::apply(&directory, "", &AdminOp::DeleteUser { name: "u".into() }).expect("deleted");
    assert_eq!((applied, consequences.gone), (Applied::Changed, Some(Gone::User("u".into()))));
    assert_eq!(directory.user_limits("u").max_channels, None);
    apply(&directory, "", put_user("u")).expect("made");
    assert!(!may(Permission::Read), "a new user of the name starts without permissions");
}

/// A durable queue without arguments.
fn create_queue(topology: &mut crate::topology::Topology, id: u64, shard: u32, name: &str) {
    let arguments = FieldTable::default();
    let declare = crate::topology::QueueDeclare {
        name,
        server_named: false,
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: &arguments,
        connection: crate::topology::ConnectionId(0),
    };
    topology.create_queue(QueueId(id), shard, &declare);
}

#[test]
fn a_deleted_vhost_takes_all_that_is_in_it() {
    let directory = directory();
    apply(&directory, "", put_user("u")).expect("made");
    apply(&directory, "v", AdminOp::PutVhost(VhostInfo::default())).expect("made");
    apply(&directory, "v", set_permissions("u")).expect("set");
    apply(&directory, "v", policy("p", r#"{"max-length":1}"#)).expect("set");
    let vhost = directory.vhost("v").expect("it was made");
    vhost.replay(|topology| create_queue(topology, 5, 3, "q"));
    let (_, consequences) = admin::apply(&directory, "v", &AdminOp::DeleteVhost).expect("deleted");
    assert_eq!(consequences.orphans, [(3, QueueId(5))]);
    assert!(vhost.is_ended());
    apply(&directory, "v", AdminOp::PutVhost(VhostInfo::default())).expect("made");
    assert!(!directory.access().vhost_access("u", "v"));
    assert_eq!(contents(&directory).len(), 2, "virtual host and user: {:?}", contents(&directory));
}

#[test]
fn policies_count_at_once_for_what_is_there() {
    let directory = directory();
    apply(&directory, "/", AdminOp::PutVhost(VhostInfo::default())).expect("made");
    let vhost = directory.vhost("/").expect("it was made");
    vhost.replay(|topology| {
        create_queue(topology, 1, 0, "q1");
        create_queue(topology, 2, 0, "x1");
    });
    let max_length = |name: &str| {
        let topology = vhost.read();
        topology.find_queue(name).expect("it is there").settings.max_length
    };
    let before = vhost.version();
    let (_, consequences) = admin::apply(&directory, "/", &policy("p", r#"{"max-length":9}"#)).expect("set");
    assert_eq!(consequences.settings.iter().map(|record| &*record.name).collect::<Vec<_>>(), ["q1"]);
    assert_eq!((max_length("q1"), max_length("x1")), (Some(9), None));
    assert!(vhost.version() > before, "who cached what the queue is looks again");
    let operator = AdminOp::SetParameter {
        component: "operator_policy".into(),
        name: "o".into(),
        value: r#"{"pattern":".*","apply-to":"queues","definition":{"max-length":4}}"#.into(),
    };
    apply(&directory, "/", operator).expect("set");
    assert_eq!((max_length("q1"), max_length("x1")), (Some(4), Some(4)));
    apply(&directory, "/", AdminOp::ClearParameter { component: "operator_policy".into(), name: "o".into() })
        .expect("cleared");
    assert_eq!((max_length("q1"), max_length("x1")), (Some(9), None));
    assert!(apply(&directory, "/", policy("p", r#"{"max-length":-1}"#)).is_err());
    assert_eq!(max_length("q1"), Some(9), "what is refused changes nothing");
}

#[test]
fn an_exchange_takes_its_alternate_from_a_policy() {
    let directory = directory();
    apply(&directory, "/", AdminOp::PutVhost(VhostInfo::default())).expect("made");
    let vhost = directory.vhost("/").expect("it was made");
    let set = AdminOp::SetParameter {
        component: "policy".into(),
        name: "ae".into(),
        value: r#"{"pattern":"^amq.direct$","apply-to":"exchanges","definition":{"alternate-exchange":"amq.fanout"}}"#
            .into(),
    };
    apply(&directory, "/", set).expect("set");
    let alternate = || vhost.read().find_exchange("amq.direct").expect("predeclared").alternate.clone();
    assert_eq!(alternate().as_deref(), Some("amq.fanout"));
    apply(&directory, "/", AdminOp::ClearParameter { component: "policy".into(), name: "ae".into() }).expect("cleared");
    assert_eq!(alternate(), None);
}
