//! Rules about the manifests for Kubernetes: murre takes their configuration, their probes ask routes that exist, their
//! pods fit the Pod Security Standard "restricted", and they give the drain its time. Their schemas are checked by
//! `bench/release/manifests`.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;

use clap::Parser;
use serde::Deserialize;
use serde_yaml_ng::Value;

use super::deploy::is_pinned;
use super::tree::Tree;
use commands::Cli;
use config::{Config, Sources, StoreKind, keys};
use edge::Health;
use edge::is_turned;

const FOLDER: &str = "tuning/kubernetes/";
/// Each has one set of nodes.
const PATHS: &[&str] = &["tuning/kubernetes/cluster.yaml", "tuning/kubernetes/single.yaml"];

/// Values of the secrets, by their variables.
const SAMPLES: &[(&str, &str)] = &[
    ("MURRE_ENDPOINT__CRYPTO_KEYS", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
    ("MURRE_NODE__KEYS", "0123456789abcdef"),
    ("MURRE_STORE__SCYLLA__PASSWORD", "password"),
];

/// Time of a drain beside `drain.delay` and the closing of sessions, in seconds (docs/OPERATIONS.md).
const DRAIN_SECONDS: u64 = 45;

/// Every file holds nodes that murre and Kubernetes run as these rules say.
pub fn manifests(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for path in PATHS {
        match tree.get(path) {
            Some(file) => complaints.extend(file_faults(&file.text).into_iter().map(|what| format!("{path}: {what}"))),
            None => complaints.push(format!("{path} is missing")),
        }
    }
    let others = tree.files.iter().filter(|file| file.path.starts_with(FOLDER) && !PATHS.contains(&&*file.path));
    complaints.extend(others.map(|file| format!("{}: no rule knows it", file.path)));
    complaints
}

fn file_faults(text: &str) -> Vec<String> {
    let documents: Result<Vec<Value>, _> =
        serde_yaml_ng::Deserializer::from_str(text).map(Value::deserialize).collect();
    let file = match documents {
        Ok(documents) => File(documents),
        Err(error) => return vec![error.to_string()],
    };
    let mut faults = Vec::new();
    let mut nodes = 0usize;
    for (workload, pod) in file.pods() {
        let name = text_at(workload, &["metadata", "name"]).to_owned();
        let mut of_pod = restricted(&pod["spec"]);
        of_pod.extend(start(&file, workload, &pod["spec"]));
        let config = configuration(&file, &pod["spec"]);
        let serves = workload["kind"] == "StatefulSet";
        nodes += usize::from(serves);
        match config {
            Ok(config) if serves => of_pod.extend(node(&file, workload, pod, &config)),
            Ok(_) => {}
            Err(fault) => of_pod.push(fault),
        }
        faults.extend(of_pod.into_iter().map(|what| format!("{name}: {what}")));
    }
    if nodes != 1 {
        faults.push(format!("has {nodes} StatefulSets, one is expected"));
    }
    faults
}

/// The documents of a file.
struct File(Vec<Value>);

impl File {
    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |document| document["kind"] == kind)
    }

    fn named(&self, kind: &str, name: &str) -> Option<&Value> {
        self.of_kind(kind).find(|document| document["metadata"]["name"] == name)
    }

    /// Workloads with the templates of their pods.
    fn pods(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.0.iter().map(|document| (document, &document["spec"]["template"])).filter(|(_, pod)| !pod.is_null())
    }
}

/// Returns the configuration that murre makes of the ConfigMap and the variables of a pod.
fn configuration(file: &File, pod: &Value) -> Result<Config, String> {
    let container = &pod["containers"][0];
    let words: Vec<&str> = items(&container["args"]).filter_map(Value::as_str).collect();
    let given = words.iter().position(|word| *word == "--config").and_then(|at| words.get(at + 1));
    let path = given.ok_or("names no --config in its args")?;
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mount = items(&container["volumeMounts"]).find(|mount| mount["mountPath"] == directory);
    let mount = mount.ok_or_else(|| format!("mounts nothing at {directory}"))?;
    let volume = items(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]);
    let map = volume.map_or("", |volume| text_at(volume, &["configMap", "name"]));
    let text = file.named("ConfigMap", map).map_or("", |map| text_at(map, &["data", name]));
    if text.is_empty() {
        return Err(format!("there is no ConfigMap {map} with {name}"));
    }
    let mut written = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    written.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    // A setting of the file with a secret would be in the ConfigMap.
    let parsed: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let secret = keys::KEYS.iter().filter(|key| key.secret).find(|key| {
        let mut path = key.name.split('.');
        let first = path.next().and_then(|section| parsed.get(section));
        path.fold(first, |value, part| value.and_then(|value| value.get(part))).is_some()
    });
    if let Some(key) = secret {
        return Err(format!("has the secret {} in a ConfigMap", key.name));
    }
    let variables = items(&container["env"]).map(variable).collect::<Result<Vec<_>, _>>()?;
    Config::load(&Sources { file: Some(written.path().to_owned()), variables, ..Sources::default() })
        .map_err(|error| error.to_string())
}

/// Returns a variable of a container with the value that Kubernetes gives it, or a sample of it.
fn variable(variable: &Value) -> Result<(String, String), String> {
    let name = text_at(variable, &["name"]);
    let key = keys::KEYS.iter().find(|key| key.variable() == name);
    let sample = SAMPLES.iter().find(|(sampled, _)| *sampled == name).map(|(_, sample)| (*sample).to_owned());
    let from_secret = !variable["valueFrom"]["secretKeyRef"].is_null();
    if key.is_some_and(|key| key.secret) && !from_secret {
        return Err(format!("{name} is a secret and comes from none"));
    }
    let value = match text_at(variable, &["value"]) {
        "" if from_secret => sample.ok_or_else(|| format!("no sample of {name}"))?,
        "" => "murre-0".to_owned(),
        text => text.replace("$(POD_NAME)", "murre-0"),
    };
    Ok((name.to_owned(), value))
}

/// Returns what keeps the container of a pod from starting: its image, its command, variables of services.
fn start(file: &File, workload: &Value, pod: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let container = &pod["containers"][0];
    let image = text_at(container, &["image"]);
    if image != concat!("murre:", env!("CARGO_PKG_VERSION")) || !is_pinned(image) {
        faults.push(format!("runs the image {image}, not that of this version"));
    }
    let words: Vec<&str> = items(&container["args"]).filter_map(Value::as_str).collect();
    if let Err(error) = Cli::try_parse_from(std::iter::once("murre").chain(words)) {
        faults.push(format!("has args that murre refuses: {}", error.kind()));
    }
    // The variables of a service that is called murre begin with MURRE_, and murre refuses those that it does not know.
    if pod["enableServiceLinks"] != false && file.named("Service", "murre").is_some() {
        faults.push("does not set enableServiceLinks: false".into());
    }
    let namespace = text_at(workload, &["metadata", "namespace"]);
    let labels = file.named("Namespace", namespace).map(|space| &space["metadata"]["labels"]);
    if labels.is_none_or(|labels| labels["pod-security.kubernetes.io/enforce"] != "restricted") {
        faults.push(format!("its namespace {namespace} does not enforce restricted"));
    }
    faults
}

/// Rules about a set of nodes, whose configuration is known.
fn node(file: &File, set: &Value, pod: &Value, config: &Config) -> Vec<String> {
    let mut faults = listeners(&pod["spec"], config);
    faults.extend(probes(&pod["spec"], config));
    faults.extend(services(file, set, pod));
    let container = &pod["spec"]["containers"][0];

    let sessions = u64::from(config.max_connections).div_ceil(u64::from(config.drain.rate));
    let drain = sessions + config.drain.delay.as_secs() + DRAIN_SECONDS;
    let grace = number(&pod["spec"]["terminationGracePeriodSeconds"]).unwrap_or(30);
    if grace < drain {
        faults.push(format!("is killed after {grace} s, and its drain takes {drain} s"));
    }
    let data = config.data_dir.to_string_lossy().into_owned();
    let mounts: Vec<&Value> = items(&container["volumeMounts"]).collect();
    let mount = mounts.iter().find(|mount| data.starts_with(&format!("{}/", text_at(mount, &["mountPath"]))));
    let kept = mount.is_some_and(|mount| {
        items(&set["spec"]["volumeClaimTemplates"]).any(|claim| claim["metadata"]["name"] == mount["name"])
    });
    if !kept {
        faults.push(format!("data_dir = {data} is in no volume that stays"));
    }
    let replicas = number(&set["spec"]["replicas"]).unwrap_or(1);
    if config.store.kind == StoreKind::Scylla {
        let url = items(&container["env"]).find(|variable| variable["name"] == "MURRE_NODE__URL");
        let service = text_at(set, &["spec", "serviceName"]);
        let own = format!("$(POD_NAME).{service}.{}.svc:", text_at(set, &["metadata", "namespace"]));
        if !url.is_some_and(|url| text_at(url, &["value"]).contains(&own)) {
            faults.push(format!("its node.url does not begin with {own}"));
        }
        if file.named("Service", service).is_none_or(|service| service["spec"]["clusterIP"] != "None") {
            faults.push(format!("the service {service} gives its pods no names: it is not headless"));
        }
        let budget = file.of_kind("PodDisruptionBudget").find(|budget| selects(&budget["spec"]["selector"], pod));
        if budget.is_none_or(|budget| number(&budget["spec"]["maxUnavailable"]) != Some(1)) {
            faults.push("no PodDisruptionBudget lets go of one pod at a time".into());
        }
    } else if replicas != 1 {
        faults.push(format!("{replicas} nodes cannot share an embedded store"));
    }
    faults
}

/// Addresses that a pod is reached at from outside of it, by the setting that has them.
fn reachable(config: &Config) -> BTreeMap<u16, Vec<&'static str>> {
    let all: [(&str, &[SocketAddr]); 5] = [
        ("websocket.listen", &config.websocket.listen),
        ("endpoint.listen", &config.endpoint.listen),
        ("node.listen", &config.node.listen),
        ("metrics.listen", &config.metrics.listen),
        ("admin.listen", &config.admin.listen),
    ];
    let mut ports: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for (setting, addresses) in all {
        for address in addresses.iter().filter(|address| !address.ip().is_loopback()) {
            ports.entry(address.port()).or_default().push(setting);
        }
    }
    ports
}

/// The ports of a container are those at which murre listens, and operators have none.
fn listeners(pod: &Value, config: &Config) -> Vec<String> {
    let open = reachable(config);
    let named: Vec<u64> = items(&pod["containers"][0]["ports"]).filter_map(|p| number(&p["containerPort"])).collect();
    let mut faults: Vec<String> = Vec::new();
    faults.extend(open.iter().filter(|(port, _)| !named.contains(&u64::from(**port))).map(|(port, settings)| {
        format!("murre listens on {port} ({}), which the container does not name", settings.join(", "))
    }));
    let closed = named.iter().filter(|port| !open.keys().any(|open| u64::from(*open) == **port));
    faults.extend(closed.map(|port| format!("the container names port {port}, and murre does not listen there")));
    if open.values().any(|settings| settings.contains(&"admin.listen")) {
        faults.push("admin.listen is reached from outside of the pod".into());
    }
    faults
}

/// Each probe asks a route that turns for its purpose, at a port that has it (docs/OPERATIONS.md#health).
fn probes(pod: &Value, config: &Config) -> Vec<String> {
    let container = &pod["containers"][0];
    let open = reachable(config);
    let mut faults = Vec::new();
    for (probe, purpose) in
        [("startupProbe", Health::Broken), ("livenessProbe", Health::Broken), ("readinessProbe", Health::Unready)]
    {
        let get = &container[probe]["httpGet"];
        let (path, port) = (text_at(get, &["path"]), port_of(container, &get["port"]));
        let turns: Vec<Health> = Health::ALL.into_iter().filter(|health| is_turned(path, *health)).collect();
        if turns.first() != Some(&purpose) {
            faults.push(format!("{probe} asks {path}, which turns for {turns:?} and not from {purpose:?} on"));
        }
        let settings = port.and_then(|port| open.get(&port));
        // The page of the WebSocket port turns when there is no room for another WebSocket: POSTs would be lost, too.
        let right = settings.is_some_and(|found| purpose == Health::Broken || !found.contains(&"websocket.listen"));
        if !right {
            faults.push(format!("{probe} asks {path} at a port that does not have it"));
        }
    }
    let readiness = &container["readinessProbe"];
    let notices =
        number(&readiness["periodSeconds"]).unwrap_or(10) * number(&readiness["failureThreshold"]).unwrap_or(3);
    if notices > config.drain.delay.as_secs() {
        faults.push(format!("readinessProbe takes {notices} s to notice a drain, longer than drain.delay"));
    }
    faults
}

/// Services lead to ports of the pod, and the set has the service that it names.
fn services(file: &File, set: &Value, pod: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let container = &pod["spec"]["containers"][0];
    for service in file.of_kind("Service") {
        let name = text_at(service, &["metadata", "name"]);
        if !matches(&service["spec"]["selector"], &pod["metadata"]["labels"]) {
            faults.push(format!("the service {name} selects other pods"));
        }
        let lost = items(&service["spec"]["ports"]).filter(|port| port_of(container, &port["targetPort"]).is_none());
        faults
            .extend(lost.map(|port| format!("the service {name} leads to no port with {}", text_at(port, &["name"]))));
    }
    let name = text_at(set, &["spec", "serviceName"]);
    if file.named("Service", name).is_none() {
        faults.push(format!("there is no service {name}"));
    }
    for policy in file.of_kind("NetworkPolicy") {
        let rules = items(&policy["spec"]["ingress"]).flat_map(|rule| items(&rule["ports"]));
        let lost = rules.filter(|port| port_of(container, &port["port"]).is_none());
        faults.extend(lost.map(|port| format!("a NetworkPolicy opens no port of the pod: {:?}", port["port"])));
    }
    if !selects(&set["spec"]["selector"], pod) {
        faults.push("selects other pods than its own".into());
    }
    faults
}

/// Number of the port of a container with this name.
fn port_of(container: &Value, name: &Value) -> Option<u16> {
    let port = items(&container["ports"]).find(|port| port["name"] == *name || port["containerPort"] == *name)?;
    number(&port["containerPort"])?.try_into().ok()
}

fn selects(selector: &Value, pod: &Value) -> bool {
    matches(&selector["matchLabels"], &pod["metadata"]["labels"])
}

/// Every label of a selector is one of a pod.
fn matches(selector: &Value, labels: &Value) -> bool {
    selector.as_mapping().is_some_and(|wanted| wanted.iter().all(|(name, value)| labels[name] == *value))
}

/// Rules of the Pod Security Standard "restricted" (with all of "baseline") that a pod breaks, by their names there.
fn restricted(pod: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    let mut rule = |name: &'static str, holds: bool| {
        if !holds {
            broken.push(format!("breaks the rule \"{name}\" of restricted"));
        }
    };
    let of_pod = &pod["securityContext"];
    let unset_or = |value: &Value, allowed: &[&str]| value.is_null() || allowed.iter().any(|one| value == one);
    rule("Host Namespaces", ["hostNetwork", "hostPID", "hostIPC"].iter().all(|key| is_off(&pod[*key])));
    rule("Sysctls", of_pod["sysctls"].is_null());
    let types =
        ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];
    let is_allowed = |volume: &Value| members(volume).all(|(key, _)| key == "name" || types.contains(&key));
    rule("Volume Types", items(&pod["volumes"]).all(is_allowed));
    let kinds = ["containers", "initContainers", "ephemeralContainers"];
    let containers: Vec<&Value> = kinds.iter().flat_map(|kind| items(&pod[*kind])).collect();
    rule("Containers", !containers.is_empty());
    for container in containers {
        let own = &container["securityContext"];
        // A setting of the container wins over that of its pod.
        let set = |key: &str| if own[key].is_null() { of_pod[key].clone() } else { own[key].clone() };
        let seccomp = ["RuntimeDefault", "Localhost"];
        rule("HostProcess", is_off(&set("windowsOptions")["hostProcess"]));
        rule("Privileged Containers", is_off(&own["privileged"]));
        rule("Privilege Escalation", own["allowPrivilegeEscalation"] == false);
        rule("Running as Non-root", set("runAsNonRoot") == true);
        rule("Running as Non-root user", number(&set("runAsUser")).is_none_or(|user| user != 0));
        rule("Seccomp", seccomp.iter().any(|kind| set("seccompProfile")["type"] == *kind));
        rule("AppArmor", unset_or(&set("appArmorProfile")["type"], &seccomp));
        rule("SELinux", unset_or(&set("seLinuxOptions")["user"], &[]) && unset_or(&set("seLinuxOptions")["role"], &[]));
        rule("/proc Mount Type", unset_or(&own["procMount"], &["Default"]));
        rule("Capabilities: drop", items(&own["capabilities"]["drop"]).any(|dropped| dropped == "ALL"));
        rule("Capabilities: add", items(&own["capabilities"]["add"]).all(|added| added == "NET_BIND_SERVICE"));
        rule("Host Ports", items(&container["ports"]).all(|port| port["hostPort"].is_null()));
        let probes = ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| &container[probe]);
        let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
        let names_host = |asked: &&Value| !asked["httpGet"]["host"].is_null() || !asked["tcpSocket"]["host"].is_null();
        rule("Host Probes / Lifecycle Hooks", !probes.iter().chain(&hooks).any(names_host));
        // No rule of the standard; murre writes below data_dir alone.
        rule("(of murre) read-only root", own["readOnlyRootFilesystem"] == true);
    }
    broken
}

fn is_off(value: &Value) -> bool {
    value.is_null() || *value == false
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64()
}

fn text_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter().fold(value, |value, part| &value[*part]).as_str().unwrap_or("")
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_mapping().into_iter().flatten().filter_map(|(name, value)| Some((name.as_str()?, value)))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_sequence().into_iter().flatten()
}

#[test]
fn a_manifest_that_murre_or_restricted_refuses_is_refused() {
    let cluster = include_str!("../../../tuning/kubernetes/cluster.yaml");
    let single = include_str!("../../../tuning/kubernetes/single.yaml");
    let check = |cluster: &str, single: &str| manifests(&Tree::of(&[(PATHS[0], cluster), (PATHS[1], single)]));
    assert_eq!(check(cluster, single), Vec::<String>::new());
    assert_eq!(manifests(&Tree::of(&[("tuning/kubernetes/other.yaml", "")])).len(), 3);
    for (is, bad, complaint) in SABOTAGE {
        assert!(cluster.contains(is), "{is}");
        // All of them: a rule about every pod is broken by any.
        let complaints = check(&cluster.replace(is, bad), single);
        assert!(complaints.iter().any(|said| said.contains(complaint)), "{bad}: {complaints:?}");
    }
    let complaints = check(cluster, &single.replace("replicas: 1", "replicas: 2"));
    assert!(complaints.iter().any(|said| said.contains("cannot share an embedded store")), "{complaints:?}");
}

/// The text that a manifest has, the text that takes its place, and a part of the complaint.
#[cfg(test)]
const SABOTAGE: &[(&str, &str, &str)] = &[
    ("kind: ConfigMap", "kind: [", "did not find expected"),
    ("kind: StatefulSet", "kind: Deployment", "has 0 StatefulSets"),
    ("max_connections = 100000", "connections_max = 1", "there is no key connections_max"),
    ("[store.scylla]", "[store.scylla]\n    password = \"p\"", "the secret store.scylla.password in a ConfigMap"),
    ("valueFrom: {secretKeyRef: {name: murre-secrets, key: node_keys}}", "value: 0123456789abcdef", "comes from none"),
    ("value: http://$(POD_NAME)", "value: $(POD_NAME)", "node.url"),
    ("value: http://$(POD_NAME).murre-nodes", "value: http://murre", "its node.url does not begin with"),
    ("\"--config\", \"/etc/murre/murre.toml\"", "\"--set\"", "names no --config"),
    ("/etc/murre/murre.toml", "/etc/murre.toml", "mounts nothing at /etc"),
    ("configMap:\n            name: murre", "configMap:\n            name: other", "there is no ConfigMap other"),
    ("\"serve\", ", "\"run\", ", "args that murre refuses"),
    ("image: murre:0.1.0", "image: murre:latest", "not that of this version"),
    ("enableServiceLinks: false", "enableServiceLinks: true", "does not set enableServiceLinks"),
    ("enforce: restricted", "enforce: baseline", "does not enforce restricted"),
    ("terminationGracePeriodSeconds: 180", "terminationGracePeriodSeconds: 159", "its drain takes 160 s"),
    ("delay = 15", "delay = 9", "takes 10 s to notice"),
    ("rate = 1000 ", "rate = 10 ", "its drain takes 10060 s"),
    ("data_dir = \"/var/lib/murre/data\"", "data_dir = \"/data\"", "is in no volume that stays"),
    ("clusterIP: None", "type: ClusterIP", "it is not headless"),
    ("maxUnavailable: 1", "maxUnavailable: 2", "no PodDisruptionBudget"),
    ("containerPort: 8084", "containerPort: 8085", "murre listens on 8084 (metrics.listen)"),
    ("containerPort: 8084", "containerPort: 8085", "murre does not listen there"),
    ("[metrics]", "[admin]", "admin.listen is reached"),
    ("path: /status", "path: /__lbheartbeat__", "livenessProbe asks /__lbheartbeat__"),
    ("path: /__lbheartbeat__", "path: /status", "readinessProbe asks /status"),
    ("path: /status", "path: /ready", "startupProbe asks /ready, which turns for []"),
    (
        "port: metrics\n            periodSeconds: 5",
        "port: public\n            periodSeconds: 5",
        "a port that does not have it",
    ),
    ("targetPort: public", "targetPort: https", "leads to no port"),
    ("- port: node", "- port: peers", "a NetworkPolicy opens no port"),
    ("serviceName: murre-nodes", "serviceName: nodes", "there is no service nodes"),
    (
        "spec:\n  selector:\n    app.kubernetes.io/name: murre",
        "spec:\n  selector:\n    app: murre",
        "selects other pods",
    ),
    ("automountServiceAccountToken", "hostNetwork: true\n      other", "\"Host Namespaces\""),
    ("runAsUser: 10001", "sysctls: [{name: a, value: b}]", "\"Sysctls\""),
    ("configMap:\n", "hostPath: {path: /}\n          configMap:\n", "\"Volume Types\""),
    ("drop: [\"ALL\"]", "drop: [\"CHOWN\"]", "\"Capabilities: drop\""),
    ("drop: [\"ALL\"]", "drop: [\"ALL\"]\n              add: [\"SYS_ADMIN\"]", "\"Capabilities: add\""),
    ("readOnlyRootFilesystem: true", "privileged: true", "\"Privileged Containers\""),
    ("readOnlyRootFilesystem: true", "privileged: true", "read-only root"),
    ("allowPrivilegeEscalation: false", "procMount: Unmasked", "\"Privilege Escalation\""),
    ("allowPrivilegeEscalation: false", "procMount: Unmasked", "\"/proc Mount Type\""),
    ("runAsNonRoot: true", "seLinuxOptions: {user: root}", "\"Running as Non-root\""),
    ("runAsNonRoot: true", "seLinuxOptions: {user: root}", "\"SELinux\""),
    ("runAsUser: 10001", "runAsUser: 0", "\"Running as Non-root user\""),
    ("type: RuntimeDefault", "type: Unconfined", "\"Seccomp\""),
    ("runAsGroup: 10001", "appArmorProfile: {type: Unconfined}", "\"AppArmor\""),
    ("runAsGroup: 10001", "windowsOptions: {hostProcess: true}", "\"HostProcess\""),
    ("containerPort: 8080", "containerPort: 8080\n              hostPort: 8080", "\"Host Ports\""),
    ("path: /status", "path: /status\n              host: example.org", "\"Host Probes / Lifecycle Hooks\""),
];
