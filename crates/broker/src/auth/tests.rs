//! Logins and decisions, with the texts that RabbitMQ gives.

use super::*;

const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const QUEUE_DECLARE: MethodId = MethodId::new(50, 10);
const PUBLISH: MethodId = MethodId::new(60, 40);

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// `guest` with everything and over loopback only, `probe` with `^probe\.c` in `/` alone.
fn access() -> AccessControl {
    let mut access = AccessControl::new();
    access.put_user("guest", Password::Plain("guest"), vec![Tag::Administrator]).unwrap();
    access.put_user("probe", Password::Plain("secret"), vec![]).unwrap();
    access.set_loopback_users(["guest".to_owned()]);
    access.set_permissions("/", "guest", ".*", ".*", ".*").unwrap();
    access.set_permissions("/", "probe", r"^probe\.c", r"^probe\.w", r"^probe\.r").unwrap();
    access
}

#[test]
fn right_password_logs_in_and_wrong_or_empty_ones_do_not() {
    let access = access();
    assert_eq!(access.authenticate("probe", b"secret", LOOPBACK).unwrap().name(), "probe");
    for password in [&b"secret "[..], b"Secret", b"guest", b"\xff"] {
        let refused = access.authenticate("probe", password, LOOPBACK);
        assert_eq!(refused.unwrap_err(), LoginError::BadPassword("probe".to_owned()));
    }
    let refused = access.authenticate("nobody", b"secret", LOOPBACK).unwrap_err();
    assert_eq!(refused, LoginError::UnknownUser("nobody".to_owned()));
    assert_eq!(refused.to_string(), "user 'nobody' - invalid credentials");
    assert!(matches!(access.authenticate("probe", b"", LOOPBACK), Err(LoginError::BlankPassword(_))));
}

#[test]
fn user_without_a_password_never_logs_in() {
    let mut access = access();
    for password in [Password::None, Password::Plain("")] {
        access.put_user("cert", password, vec![]).unwrap();
        assert!(access.authenticate("cert", b"", LOOPBACK).is_err());
        assert!(access.authenticate("cert", b"\0", LOOPBACK).is_err());
    }
}

#[test]
fn loopback_user_is_refused_from_elsewhere_even_when_mapped_into_ipv6() {
    let access = access();
    for peer in ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"] {
        assert!(access.authenticate("guest", b"guest", address(peer)).is_ok(), "{peer}");
    }
    for peer in ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "0.0.0.0", "::"] {
        let refused = access.authenticate("guest", b"guest", address(peer)).unwrap_err();
        assert_eq!(refused.to_string(), "user 'guest' can only connect via localhost", "{peer}");
    }
    assert!(access.authenticate("probe", b"secret", address("10.0.0.1")).is_ok());
}

#[test]
fn wrong_password_from_elsewhere_does_not_tell_that_the_user_is_for_loopback_only() {
    let refused = access().authenticate("guest", b"wrong", address("10.0.0.1")).unwrap_err();
    assert_eq!(refused, LoginError::BadPassword("guest".to_owned()));
}

#[test]
fn vhost_access_wants_permissions_there_even_if_they_match_nothing() {
    let mut access = access();
    assert!(access.vhost_access("probe", "/"));
    assert!(!access.vhost_access("probe", "other"));
    assert!(!access.vhost_access("nobody", "/"));
    access.set_permissions("other", "probe", "", "", "").unwrap();
    assert!(access.vhost_access("probe", "other"));
    access.clear_permissions("other", "probe").unwrap();
    assert!(!access.vhost_access("probe", "other"));
}

#[test]
fn each_permission_decides_for_itself_and_in_its_vhost() {
    let access = access();
    let allowed = |vhost, name, permission| {
        access.authorize("probe", vhost, Resource::Queue(name), permission, QUEUE_DECLARE).is_ok()
    };
    for (name, permission) in
        [("probe.c", Permission::Configure), ("probe.w", Permission::Write), ("probe.r", Permission::Read)]
    {
        for other in [Permission::Configure, Permission::Write, Permission::Read] {
            assert_eq!(allowed("/", name, other), other == permission, "{name} {other}");
            assert!(!allowed("other", name, other));
        }
    }
}

#[test]
fn refusals_read_like_those_of_rabbitmq_and_close_the_channel() {
    let access = access();
    let refused = |resource, method| {
        access.authorize("probe", "/", resource, Permission::Configure, method).expect_err("refused")
    };
    let exception = refused(Resource::Queue("probe.none"), QUEUE_DECLARE);
    assert_eq!(
        exception.reply_text(),
        "ACCESS_REFUSED - access to queue 'probe.none' in vhost '/' refused for user 'probe'"
    );
    assert_eq!((exception.code, exception.method), (ReplyCode::AccessRefused, QUEUE_DECLARE));
    assert!(!exception.whole_connection);
    assert_eq!(
        refused(Resource::Exchange(""), PUBLISH).reply_text(),
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'probe'"
    );
}

#[test]
fn topic_permissions_narrow_keys_of_their_exchange_only() {
    let mut access = access();
    access.set_topic_permissions("/", "probe", "probe.c", "^good", r"^{username}\.").unwrap();
    let check = |access: &AccessControl, exchange, key, permission| {
        access.authorize_topic("probe", "/", exchange, key, permission, PUBLISH)
    };
    assert!(check(&access, "probe.c", "good.key", Permission::Write).is_ok());
    assert!(check(&access, "probe.c", "probe.key", Permission::Read).is_ok());
    assert!(check(&access, "probe.d", "bad.key", Permission::Write).is_ok());
    assert!(check(&access, "probe.c", "bad.key", Permission::Configure).is_ok());
    let refused = check(&access, "probe.c", "bad.key", Permission::Write).unwrap_err();
    assert_eq!(
        refused.reply_text(),
        "ACCESS_REFUSED - access to topic 'bad.key' in exchange 'probe.c' in vhost '/' refused for user 'probe'"
    );
    access.clear_topic_permissions("/", "probe", Some("other")).unwrap();
    assert!(check(&access, "probe.c", "bad.key", Permission::Write).is_err());
    access.clear_topic_permissions("/", "probe", Some("probe.c")).unwrap();
    assert!(check(&access, "probe.c", "bad.key", Permission::Write).is_ok());
}

#[test]
fn invalid_pattern_names_the_permission_and_changes_nothing() {
    let mut access = access();
    let version = access.version();
    let error = access.set_permissions("/", "probe", ".*", "(", ".*").unwrap_err();
    assert!(matches!(error, AuthError::InvalidPattern { permission: Permission::Write, .. }), "{error}");
    assert!(error.to_string().starts_with("invalid regular expression for write: "), "{error}");
    assert_eq!(access.version(), version);
    assert!(access.authorize("probe", "/", Resource::Queue("x"), Permission::Configure, QUEUE_DECLARE).is_err());
}

#[test]
fn deleted_user_and_deleted_vhost_leave_no_permissions_behind() {
    let mut access = access();
    access.set_topic_permissions("/", "probe", "x", "", "").unwrap();
    access.delete_user("probe").unwrap();
    assert_eq!(access.delete_user("probe"), Err(AuthError::NoSuchUser("probe".to_owned())));
    access.put_user("probe", Password::Plain("new"), vec![]).unwrap();
    assert!(!access.vhost_access("probe", "/"));
    assert!(access.authorize_topic("probe", "/", "x", "key", Permission::Write, PUBLISH).is_ok());
    access.delete_vhost("/");
    assert!(!access.vhost_access("guest", "/"));
}

#[test]
fn changed_password_keeps_permissions_and_every_change_moves_the_version() {
    let mut access = access();
    let before = access.version();
    access.put_user("probe", Password::Plain("new"), vec![Tag::Impersonator]).unwrap();
    assert!(access.version() > before);
    assert!(access.vhost_access("probe", "/"));
    assert!(access.authenticate("probe", b"secret", LOOPBACK).is_err());
    let user = access.authenticate("probe", b"new", LOOPBACK).unwrap();
    assert!(user.has_tag(&Tag::Impersonator));
}

#[test]
fn permissions_of_unknown_users_and_unusable_names_are_refused() {
    let mut access = access();
    assert!(matches!(access.set_permissions("/", "nobody", "", "", ""), Err(AuthError::NoSuchUser(_))));
    assert_eq!(access.put_user("", Password::None, vec![]), Err(AuthError::InvalidName));
    assert_eq!(access.put_user(&"a".repeat(256), Password::None, vec![]), Err(AuthError::InvalidName));
}
