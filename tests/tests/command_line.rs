//! `warrenmq ctl` as a program: what it is called, what it prints, how it ends.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};

use warrenmq_tests::{Node, Wire, node};

#[test]
fn output_and_exit_codes_are_rabbitmqctls() {
    let node = Node::start();
    let run = |words: &[&str]| {
        let output = node.ctl(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run(&["add_user", "u", "p"]);
    let done = "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help set_permissions' \
                to learn more.\n";
    assert_eq!((code, out, err), (Some(0), format!("Adding user \"u\" ...\n{done}"), String::new()));
    let (code, out, err) = run(&["add_user", "u", "p"]);
    let exists = (Some(70), "Adding user \"u\" ...\n".to_owned(), "Error:\nUser \"u\" already exists\n".to_owned());
    assert_eq!((code, out, err), exists);
    let (code, out, _) = run(&["list_users", "--formatter", "json"]);
    let json = "[\n{\"user\":\"guest\",\"tags\":[\"administrator\"]}\n,{\"user\":\"u\",\"tags\":[]}\n]\n";
    assert_eq!((code, out.as_str()), (Some(0), json));
    assert_eq!(run(&["-s", "list_vhosts"]).1, "/\n");
    assert_eq!(run(&["authenticate_user", "u", "p"]).1, "Authenticating user \"u\" ...\nSuccess\n");
    assert_eq!(run(&["authenticate_user", "u", "x"]).0, Some(65));
    assert_eq!(run(&["set_permissions", "nobody", "", "", ""]).0, Some(67));
    assert_eq!(run(&["set_permissions", "u"]).0, Some(64));
    assert_eq!(run(&["list_users", "--nonsense"]).0, Some(64));
    assert_eq!(run(&["delete_vhost", "nowhere"]).0, Some(65));
    assert_eq!(run(&["add_user", "no-password"]).0, Some(65), "nothing comes on standard input");
    let (code, _, err) = run(&["list_quees"]);
    assert!(code == Some(64) && err.contains("Did you mean 'list_queues'?"), "{err}");
    assert_eq!(
        run(&["set_parameter", "shovel", "s", "{}"]).2,
        "Error:\nValidation failed\n\ncomponent shovel not found\n\n"
    );
}

#[test]
fn the_binary_is_rabbitmqctl_under_that_name() {
    let node = Node::start();
    let directory = tempfile::tempdir().expect("a directory");
    let link = directory.path().join("rabbitmqctl");
    symlink(node::binary(), &link).expect("a link");
    let output = node.ctl_as(&link, &[], &["await_startup"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = node.ctl_as(&link, &["-q"], &["list_vhosts"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "name\n/\n");
}

#[test]
fn the_socket_is_for_the_nodes_user_alone() {
    let node = Node::start();
    let metadata = std::fs::metadata(node.data_dir().join("ctl.sock")).expect("it is there");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_node_that_is_not_there_is_unavailable() {
    let mut node = Node::start();
    let status = node.ctl_ok(&["status"]);
    assert!(status.contains("RabbitMQ version: ") && status.contains("Virtual host count: 1\n"), "{status}");
    assert_eq!(node.ctl(&["stop"]).status.code(), Some(0));
    assert!(node.wait().success());
    let (code, text) = node.ctl_fails(&["list_users"]);
    assert!(code == 69 && text.starts_with("Error: unable to perform an operation on node "), "{text}");
    node.restart();
    assert_eq!(node.ctl_ok(&["ping"]), "Ping succeeded\n");
    Wire::open(&node);
}

#[test]
fn probes_pass_on_a_healthy_node() {
    let node = Node::start();
    let probes: [&[&str]; 7] = [
        &["ping"],
        &["check_running"],
        &["check_local_alarms"],
        &["check_alarms"],
        &["check_port_connectivity"],
        &["check_virtual_hosts"],
        &["enable_feature_flag", "all"],
    ];
    for probe in probes {
        node.ctl_ok(probe);
    }
    node.ctl_ok(&["check_port_listener", &node.addr().port().to_string()]);
    assert_eq!(node.ctl_fails(&["check_port_listener", "1"]).0, 69);
}
