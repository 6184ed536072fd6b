//! Whole configurations: files, environment and command line together.

use std::fs;
use std::time::Duration;

use broker::auth::Tag;
use broker::memory::Watermark;

use super::settings::DiskLimit;
use super::*;

/// A directory with `main.conf` and, under their names, the files of `conf.d`.
fn directory(main: &str, additional: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join("main.conf"), main).unwrap();
    for (name, content) in additional {
        fs::create_dir_all(directory.path().join("conf.d")).unwrap();
        fs::write(directory.path().join("conf.d").join(name), content).unwrap();
    }
    directory
}

fn args_for(directory: &tempfile::TempDir) -> ServerArgs {
    ServerArgs { config: Some(directory.path().join("main.conf")), ..ServerArgs::default() }
}

fn loaded(main: &str) -> Loaded {
    load(&args_for(&directory(main, &[])), &Environment::default()).expect("valid")
}

fn config(main: &str) -> Config {
    let loaded = loaded(main);
    assert_eq!(loaded.warnings, []);
    loaded.config
}

fn listeners(config: &Config) -> Vec<String> {
    config.listeners.iter().map(ToString::to_string).collect()
}

#[test]
fn empty_file_leaves_the_defaults() {
    let config = config("# nothing\n");
    assert_eq!(listeners(&config), ["port 5672 of all interfaces"]);
    assert_eq!((config.first_start.user.as_str(), config.first_start.password.as_str()), ("guest", "guest"));
    assert_eq!(config.first_start.tags, [Tag::Administrator]);
    assert_eq!(config.loopback_users, ["guest"]);
    assert_eq!((config.heartbeat_s, config.frame_max_bytes, config.channel_max), (60, 131_072, 2047));
    assert_eq!(config.max_message_bytes, 134_217_728);
    assert_eq!(config.memory_watermark, Watermark::Relative(0.6));
    assert!(config.node_name.starts_with("rabbit@") && config.cluster_name == config.node_name);
    assert!(config.data_dir.is_absolute() && config.data_dir.ends_with("warrenmq-data"));
    assert_eq!(config.log.console, Some(LogOutput { level: LogLevel::Info, format: LogFormat::Text }));
    assert_eq!(config.log.file, None);
}

#[test]
fn every_key_sets_what_it_names() {
    let config = config(
        r"
        data_dir = /data
        accept_damage = true
        cluster_name = blue one
        listeners.tcp.default = 5673
        listeners.tcp.1 = 127.0.0.1:5674
        listeners.tcp.2 = ::1:5675
        default_user = alice
        default_pass = 'se#cret'
        default_vhost = main
        vhosts.1 = one
        vhosts.2 = two/three
        default_user_tags.monitoring = true
        default_user_tags.administrator = false
        default_permissions.configure = ^a
        default_permissions.write = ^b
        default_permissions.read = ''
        loopback_users.guest = false
        loopback_users.alice = true
        heartbeat = 30
        frame_max = 64KB
        initial_frame_max = 16384
        channel_max = 100
        handshake_timeout = 5000
        max_message_size = 1MiB
        vm_memory_high_watermark.absolute = 2GiB
        total_memory_available_override_value = 4GB
        disk_free_limit.relative = 1.5
        product.name = Hare
        product.version = 1.2.3
        log.level = debug
        log.console.level = warning
        log.console.formatter = json
        log.file = node.log
        log.dir = /var/log/warrenmq
        ",
    );
    let first = &config.first_start;
    assert_eq!((first.user.as_str(), first.password.as_str(), first.vhost.as_str()), ("alice", "se#cret", "main"));
    assert_eq!(first.more_vhosts, ["one", "two/three"]);
    assert_eq!(first.tags, [Tag::Monitoring]);
    assert_eq!((first.configure.as_str(), first.write.as_str(), first.read.as_str()), ("^a", "^b", ""));
    assert_eq!(config.data_dir, Path::new("/data"));
    assert!(config.accept_damage && !Config::default().accept_damage);
    assert_eq!(config.cluster_name, "blue one");
    assert_eq!(listeners(&config), ["127.0.0.1:5674", "[::1]:5675", "port 5673 of all interfaces"]);
    assert_eq!(config.loopback_users, ["alice"]);
    assert_eq!((config.heartbeat_s, config.frame_max_bytes, config.initial_frame_max_bytes), (30, 65_536, 16_384));
    assert_eq!((config.channel_max, config.handshake_timeout), (100, Duration::from_secs(5)));
    assert_eq!(config.max_message_bytes, 1 << 20);
    assert_eq!(config.memory_watermark, Watermark::Absolute(2 << 30));
    assert_eq!(config.total_memory_bytes, Some(4_000_000_000));
    assert_eq!(config.disk_free_limit, DiskLimit::Relative(1.5));
    assert_eq!((config.product_name.as_str(), config.product_version.as_str()), ("Hare", "1.2.3"));
    assert_eq!(config.log.console, Some(LogOutput { level: LogLevel::Warning, format: LogFormat::Json }));
    let file =
        (PathBuf::from("/var/log/warrenmq/node.log"), LogOutput { level: LogLevel::Debug, format: LogFormat::Text });
    assert_eq!(config.log.file, Some(file));
}

#[test]
fn bad_value_is_refused_with_file_line_and_what_is_expected() {
    let bad = [
        ("heartbeat = often", "expected a number of seconds from 0 to 65535"),
        ("frame_max = 100", "expected a size from 4096 to"),
        ("listeners.tcp.default = localhost:5672", "expected PORT or ADDRESS:PORT"),
        ("listeners.tcp = 5672", "expected none"),
        ("loopback_users = all", "expected none"),
        ("loopback_users.guest = no", "expected true or false"),
        ("default_permissions.read = (", "expected a regular expression"),
        ("default_vhost = ''", "expected a name"),
        ("max_message_size = 513MiB", "expected a size from 1 to 536870912"),
        ("vm_memory_high_watermark.relative = 40%", "expected a number"),
        ("vm_memory_high_watermark.absolute = lots", "expected a size"),
        ("log.console.level = loud", "expected debug"),
        ("log.file.formatter = xml", "expected plaintext or json"),
        ("no_value =", "expected a value"),
    ];
    for (line, expected) in bad {
        let directory = directory(&format!("# one\n\n{line}\n"), &[]);
        let error = load(&args_for(&directory), &Environment::default()).expect_err(line).to_string();
        let place = format!("{}:3: ", directory.path().join("main.conf").display());
        assert!(error.starts_with(&place) && error.contains(expected), "{error}");
    }
}

#[test]
fn unknown_key_is_a_warning_with_its_place() {
    let loaded = loaded("heartbeat = 5\nmirroring_sync_batch_size = 4096\nlog.exchange = true\n");
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 2);
    assert!(
        warnings[0].ends_with("main.conf:2: mirroring_sync_batch_size has no effect: this version does not know it")
    );
    assert!(warnings[1].contains("main.conf:3: log.exchange has no effect"));
    assert_eq!(loaded.config.heartbeat_s, 5);
}

#[test]
fn password_that_a_comment_sign_cuts_is_a_warning_that_does_not_show_it() {
    let loaded = loaded("default_pass = pass#word\n");
    assert_eq!(loaded.config.first_start.password, "pass");
    let warning = loaded.warnings[0].to_string();
    assert!(warning.contains("main.conf:1: default_pass: the value ends before '#'"), "{warning}");
    assert!(!warning.contains("word"));
    assert!(!format!("{:?}", loaded.config).contains("pass\""));
}

#[test]
fn additional_files_are_read_by_name_after_the_main_one() {
    let directory = directory(
        "heartbeat = 1\nchannel_max = 1\nframe_max = 5000\nlisteners.tcp.1 = 1\n",
        &[
            ("20-b.conf", "heartbeat = 20\n"),
            ("10-a.conf", "heartbeat = 10\nchannel_max = 10\nlisteners.tcp.1 = 2\n"),
            ("30-c.conf.disabled", "heartbeat = 30\n"),
        ],
    );
    let loaded = load(&args_for(&directory), &Environment::default()).expect("valid");
    let config = loaded.config;
    assert_eq!((config.heartbeat_s, config.channel_max, config.frame_max_bytes), (20, 10, 5000));
    assert_eq!(config.listeners, [ListenAddress::Any(2)]);
    let names: Vec<_> = loaded.files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(names, ["main.conf", "10-a.conf", "20-b.conf"]);
}

#[test]
fn environment_names_files_with_or_without_extension_and_a_pattern() {
    let directory = directory("heartbeat = 1\n", &[("10-a.conf", "channel_max = 10\n")]);
    let main = directory.path().join("main");
    let pattern = directory.path().join("conf.d").join("*.conf");
    let environment = Environment::of(&[
        ("RABBITMQ_CONFIG_FILE", main.to_str().unwrap()),
        ("RABBITMQ_CONFIG_FILES", pattern.to_str().unwrap()),
    ]);
    let loaded = load(&ServerArgs::default(), &environment).expect("valid");
    assert_eq!((loaded.config.heartbeat_s, loaded.config.channel_max), (1, 10));
    assert_eq!(loaded.warnings, []);
}

#[test]
fn missing_file_stops_the_node_when_an_argument_names_it_and_warns_when_the_environment_does() {
    let args = ServerArgs { config: Some("/nonexistent/x.conf".into()), ..ServerArgs::default() };
    let error = load(&args, &Environment::default()).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/x.conf: cannot read the file"), "{error}");
    let environment = Environment::of(&[("RABBITMQ_CONFIG_FILE", "/nonexistent/x")]);
    let loaded = load(&ServerArgs::default(), &environment).expect("starts");
    assert!(loaded.warnings[0].to_string().contains("RABBITMQ_CONFIG_FILE: there is no such file"));
}

#[test]
fn command_line_wins_over_environment_and_environment_over_files() {
    let directory = directory(
        "listeners.tcp.default = 1111\ndefault_user = file\ndefault_pass = file\ndata_dir = /file\nlog.console.level = error\n",
        &[],
    );
    let environment = Environment::of(&[
        ("RABBITMQ_NODE_PORT", "2222"),
        ("RABBITMQ_DEFAULT_USER", "environment"),
        ("RABBITMQ_DEFAULT_VHOST", "v"),
        ("RABBITMQ_NODENAME", "hare"),
        ("WARRENMQ_DATA_DIR", "/environment"),
        ("RABBITMQ_DEFAULT_PASS", ""),
    ]);
    let config = load(&args_for(&directory), &environment).expect("valid").config;
    assert_eq!(config.listeners, [ListenAddress::Any(2222)]);
    assert_eq!(config.first_start.user, "environment");
    assert_eq!(config.first_start.password, "file", "an empty variable is not set");
    assert_eq!(config.first_start.vhost, "v");
    assert!(config.node_name.starts_with("hare@"), "{}", config.node_name);
    assert_eq!(config.data_dir, Path::new("/environment"));

    let args = ServerArgs {
        data_dir: Some("/argument".into()),
        listen: vec![ListenAddress::Any(3333)],
        node_name: Some("warren@host".to_owned()),
        log_level: Some(LogLevel::Debug),
        log_format: Some(LogFormat::Json),
        ..args_for(&directory)
    };
    let config = load(&args, &environment).expect("valid").config;
    assert_eq!(config.listeners, [ListenAddress::Any(3333)]);
    assert_eq!(config.data_dir, Path::new("/argument"));
    assert_eq!((config.node_name.as_str(), config.cluster_name.as_str()), ("warren@host", "warren@host"));
    assert_eq!(config.log.console, Some(LogOutput { level: LogLevel::Debug, format: LogFormat::Json }));
}

#[test]
fn node_address_of_the_environment_replaces_the_listeners() {
    let listeners_of = |variables: &[(&'static str, &str)]| {
        let directory = directory("listeners.tcp = none\n", &[]);
        load(&args_for(&directory), &Environment::of(variables)).map(|loaded| listeners(&loaded.config))
    };
    assert_eq!(listeners_of(&[]).unwrap(), Vec::<String>::new());
    assert_eq!(listeners_of(&[("RABBITMQ_NODE_IP_ADDRESS", "::1")]).unwrap(), ["[::1]:5672"]);
    let both = [("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1"), ("RABBITMQ_NODE_PORT", "5673")];
    assert_eq!(listeners_of(&both).unwrap(), ["127.0.0.1:5673"]);
    let error = listeners_of(&[("RABBITMQ_NODE_PORT", "amqp")]).unwrap_err().to_string();
    assert_eq!(error, "environment variable RABBITMQ_NODE_PORT: 'amqp': expected a port from 1 to 65535");
}

#[test]
fn relative_limits_win_over_absolute_ones_wherever_they_stand() {
    let config = config(
        "vm_memory_high_watermark.relative = 0.4\nvm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 2GB\n",
    );
    assert_eq!(config.memory_watermark, Watermark::Relative(0.4));
    assert_eq!(config.disk_free_limit, DiskLimit::Absolute(2_000_000_000));
}

#[test]
fn naming_another_loopback_user_leaves_guest_one() {
    assert_eq!(config("loopback_users.admin = true\n").loopback_users, ["admin", "guest"]);
    assert_eq!(config("loopback_users.admin = true\nloopback_users = none\n").loopback_users, Vec::<String>::new());
}

#[test]
fn zero_frame_and_channel_max_stand_for_the_largest() {
    let config = config("frame_max = 0\nchannel_max = 0\n");
    assert_eq!((config.frame_max_bytes, config.channel_max), (128 << 20, u16::MAX));
}

#[test]
fn log_can_be_a_file_alone_beside_the_data() {
    let config = config("data_dir = /data\nlog.console = false\nlog.file = node.log\nlog.file.level = error\n");
    assert_eq!(config.log.console, None);
    let output = LogOutput { level: LogLevel::Error, format: LogFormat::Text };
    assert_eq!(config.log.file, Some((PathBuf::from("/data/node.log"), output)));
}

#[test]
fn example_file_has_known_keys_alone_and_the_defaults_it_claims() {
    let example = include_str!("../../../../deploy/warrenmq.conf");
    let settings = example.lines().filter_map(|line| line.strip_prefix("# ")).filter(|line| {
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c))
    });
    // Lines that show a form and not the default.
    let samples = [
        "data_dir",
        "cluster_name",
        "load_definitions",
        "listeners.tcp.local",
        "listeners.tcp ",
        "vhosts.1",
        "log.file",
        "log.dir",
    ];
    let alternatives = [
        "vm_memory_high_watermark.absolute",
        "body_budget.absolute",
        "total_memory_available",
        "disk_free_limit.relative",
    ];
    let (mut defaults, mut count) = (String::new(), 0);
    for line in settings {
        assert_eq!(loaded(line).warnings, [], "{line}");
        count += 1;
        if !samples.iter().chain(&alternatives).any(|sample| line.starts_with(sample)) {
            defaults.push_str(line);
            defaults.push('\n');
        }
    }
    assert_eq!(count, 41, "settings found in the example");
    assert_eq!(config(&defaults), config(""));
}

#[test]
fn definitions_have_three_names_and_are_off_by_default() {
    assert_eq!(config("").load_definitions, None);
    for key in ["load_definitions", "management.load_definitions", "definitions.local.path"] {
        let config = config(&format!("{key} = /etc/rabbitmq/definitions.json\ndefinitions.skip_if_unchanged = true\n"));
        assert_eq!(config.load_definitions.as_deref(), Some(Path::new("/etc/rabbitmq/definitions.json")), "{key}");
    }
    config("definitions.import_backend = local_filesystem\n");
    let https = load(&args_for(&directory("definitions.import_backend = https\n", &[])), &Environment::default());
    assert!(https.is_err(), "a backend that is not there");
}
