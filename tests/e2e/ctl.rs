//! `kubectl hello`: the shipped binary, as kubectl calls it, with a user's own rights.

use std::path::{Path, PathBuf};

use hello_operator::api::names::Names;
use serde_json::{Value, json};

use crate::harness::{Case, Result, SOON, Said, Store, Suite, case, json_at, run};

#[tokio::test]
async fn kubectl_hello_as_a_user() -> Result {
    case("ctl", ctl).await
}

async fn ctl(suite: &'static Suite, case: Case) -> Result {
    case.running("db", json!({"instances": 2})).await?;
    let user = User::new(suite, &case, "user", "examples/kubectl-hello-role.yaml").await?;

    looks(&case, &user).await?;
    sessions(&user).await?;
    moves(&case, &user).await?;
    logs(&user).await?;
    report(&case, &user).await?;
    little(suite, &case).await
}

#[tokio::test]
#[ignore = "long: make test-all"]
async fn kubectl_hello_backs_up_and_restores() -> Result {
    case("ctl-backup", backs_up).await
}

async fn backs_up(suite: &'static Suite, case: Case) -> Result {
    let store = Store::start(&case).await?;
    case.running("db", json!({"instances": 1, "backup": {"destination": store.destination("team/db")}})).await?;
    let user = User::new(suite, &case, "user", "examples/kubectl-hello-role.yaml").await?;
    case.sql("db-1", "create table kept as select 42 as n").await?;
    let done = user.says(&["backup", "db", "--as", "first", "--wait"]).await?;
    assert!(done.contains("HelloBackup first is complete") && done.contains("team/db"), "{done}");
    let screen = user.says(&["status", "db"]).await?;
    assert!(screen.contains("last good: first") && screen.contains("restorable from"), "{screen}");

    let dry = user.says(&["restore", "copy", "--from", "db", "--dry-run"]).await?;
    assert!(dry.contains("path: team/db"), "{dry}");
    user.says(&["restore", "copy", "--from", "db", "--backup", "first"]).await?;
    case.ready("copy").await?;
    case.sql_gives("copy-1", "select n from kept", "42").await?;
    let stopped = user.says(&["hibernate", "copy"]).await?;
    assert!(stopped.contains("its volumes stay"), "{stopped}");
    let refused = user.refused(&["psql", "copy"]).await?;
    assert!(refused.contains("copy has no primary now"), "{refused}");
    user.says(&["resume", "copy"]).await?;
    case.sql_gives("copy-1", "select n from kept", "42").await
}

/// status, plan, and what is refused in words.
async fn looks(case: &Case, user: &User) -> Result {
    let screen = user.says(&["status", "db"]).await?;
    for part in
        ["Ready, 2/2 instances ready", "taken by db-1", "db-primary is held by db-1, renewed", "Async: ", "go nowhere"]
    {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    assert!(!screen.contains('\u{1b}'), "no terminal, no colours: {screen}");
    let view: Value = serde_json::from_str(&user.says(&["status", "db", "-o", "json"]).await?)?;
    assert_eq!((json_at(&view, "/primary/instance"), json_at(&view, "/lease/holder")), ("db-1".into(), "db-1".into()));
    let of_replica = (json_at(&view, "/instances/1/name"), json_at(&view, "/instances/1/lagIsLive"));
    assert_eq!(of_replica, ("db-2".into(), "true".into()), "{view:#}");
    let plan = user.says(&["plan", "db"]).await?;
    assert!(plan.contains("settled") && plan.contains("nothing is to be done"), "{plan}");

    let refused = user.refused(&["backup", "db"]).await?;
    assert!(refused.contains("db has no spec.backup.destination"), "{refused}");
    let refused = user.refused(&["restore", "copy", "--from", "db"]).await?;
    assert!(refused.contains("there is no archive of it"), "{refused}");
    let refused = user.refused(&["promote", "db", "db-9"]).await?;
    assert!(refused.contains("it has db-1, db-2"), "{refused}");
    let refused = user.refused(&["status", "nobody"]).await?;
    assert!(refused.contains(&format!("HelloOperator nobody in namespace {}", case.namespace())), "{refused}");
    Ok(())
}

async fn sessions(user: &User) -> Result {
    let by = "select current_user, pg_is_in_recovery()";
    assert_eq!(user.says(&["psql", "db", "--", "-At", "-c", by]).await?, "app|f");
    assert_eq!(user.says(&["psql", "db", "--superuser", "--", "-At", "-c", by]).await?, "postgres|f");
    assert_eq!(user.says(&["psql", "db", "--replica", "--", "-At", "-c", by]).await?, "app|t");
    let piped = user.run(&["psql", "db", "--", "-At"], "select 40 + 2;\n").await?.ok()?;
    assert_eq!(piped, "42");
    let failed = user.refused(&["psql", "db", "--", "-c", "select nonsense"]).await?;
    assert!(failed.contains("column \"nonsense\" does not exist"), "{failed}");
    Ok(())
}

/// promote, restart, and why it was so.
async fn moves(case: &Case, user: &User) -> Result {
    let promoted = user.says(&["promote", "db", "db-2"]).await?;
    assert!(promoted.contains("db-2 is the primary") && promoted.contains("took over from db-1"), "{promoted}");
    assert_eq!(case.primary("db").await?, "db-2");
    let again = user.says(&["promote", "db", "2"]).await?;
    assert!(again.contains("it was that already"), "{again}");
    let why = user.says(&["why", "db"]).await?;
    let at = |part: &str| why.find(part).ok_or_else(|| format!("{part} is not in:\n{why}"));
    assert!(at("HandOverStarted")? < at("HandOverCompleted")?, "{why}");
    at("WriteAvailable=True")?;

    case.ready("db").await?;
    let started = "select pg_postmaster_start_time()";
    let before = (case.sql("db-1", started).await?, case.sql("db-2", started).await?);
    let restarted = user.says(&["restart", "db", "db-1"]).await?;
    assert!(restarted.contains("PostgreSQL of db-1 was restarted"), "{restarted}");
    assert_ne!(case.sql("db-1", started).await?, before.0);
    assert_eq!(case.sql("db-2", started).await?, before.1, "only the one that was named");
    Ok(())
}

async fn logs(user: &User) -> Result {
    let lines = user.says(&["logs", "db", "--since", "10m"]).await?;
    let times: Vec<&str> = lines.lines().filter_map(|line| line.get(..24)).collect();
    assert!(times.is_sorted() && times.len() > 10, "{lines}");
    for instance in [" db-1 ", " db-2 "] {
        assert!(lines.contains(instance), "{instance}: {lines}");
    }
    let tail = user.says(&["logs", "db", "--tail", "1"]).await?;
    assert_eq!(tail.lines().count(), 2, "{tail}");
    Ok(())
}

/// The archive holds what is asked for, and none of the secrets, wherever they were left.
async fn report(case: &Case, user: &User) -> Result {
    let names = Names::new("db");
    let mut secrets = Vec::new();
    for secret in [names.secret_app(), names.secret_superuser()] {
        for key in ["password", "uri", "pgpass"] {
            secrets.push(case.secret(&secret, key).await?);
        }
    }
    for secret in [names.secret_ca(), names.secret_server(), names.secret_replication()] {
        let key = case.secret(&secret, "tls.key").await?;
        secrets.extend(key.lines().filter(|line| line.len() > 30 && !line.starts_with("---")).map(str::to_owned));
    }
    let known = secrets.first().ok_or("a password")?.clone();
    let note = format!("the password is {known}");
    case.kubectl(&["annotate", "helloop/db", &format!("example.com/note={note}")]).await?.ok()?;
    // What nobody knows is found by its form.
    let unknown = "postgres://app:only-the-form-tells@db-rw/app";
    let log = format!("do $$ begin raise log 'connects to {unknown} with {known}, marker-of-the-test'; end $$");
    case.sql("db-2", &log).await?;
    secrets.push("only-the-form-tells".to_owned());

    let file = user.folder.join("report.tar.gz");
    let path = file.to_string_lossy().into_owned();
    user.says(&["report", "db", "-o", &path]).await?;
    let all = run(SOON, Path::new("tar"), ["-xzOf", &path], "").await?.ok()?;
    let listing = run(SOON, Path::new("tar"), ["-tzf", &path], "").await?.ok()?;
    for part in [
        "README.txt",
        "status.txt",
        "why.txt",
        "objects/HelloOperator/db.json",
        "objects/Pod/db-1.json",
        "logs/db-2.log",
        "secrets.txt",
    ] {
        assert!(listing.contains(part), "{part}: {listing}");
    }
    for part in ["marker-of-the-test", "HandOverCompleted", "the password is [redacted]"] {
        assert!(all.contains(part), "{part} is not in the report");
    }
    for secret in &secrets {
        assert!(!all.contains(secret.as_str()), "the report holds {secret}");
    }
    Ok(())
}

/// Who may little sees what there is to see, and hears what is lacking.
async fn little(suite: &'static Suite, case: &Case) -> Result {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "little"},
        "rules": [{"apiGroups": ["terry.com"], "resources": ["helloopperators"], "verbs": ["get"]}]});
    let user = User::with(suite, case, "little", &role.to_string()).await?;
    let screen = user.says(&["status", "db"]).await?;
    assert!(
        screen.contains("2/2 instances ready") && screen.contains("the Lease of the primary cannot be read"),
        "{screen}"
    );
    let refused = user.refused(&["psql", "db", "--", "-c", "select 1"]).await?;
    assert!(refused.contains("psql cannot be started in db-2"), "{refused}");
    let refused = user.refused(&["restart", "db"]).await?;
    assert!(refused.contains("cannot be changed") && refused.contains("forbidden"), "{refused}");
    Ok(())
}

/// A user with a role of theirs, the plugin in their PATH.
struct User {
    folder: PathBuf,
    path: String,
    namespace: String,
}

impl User {
    async fn new(suite: &'static Suite, case: &Case, name: &str, role: &str) -> Result<Self> {
        let role = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(role))?;
        Self::with(suite, case, name, &role).await
    }

    async fn with(suite: &'static Suite, case: &Case, name: &str, role: &str) -> Result<Self> {
        let namespace = case.namespace().to_owned();
        case.kubectl(&["create", "serviceaccount", name]).await?.ok()?;
        let role = case.kubectl_with(&["apply", "-o", "name", "-f", "-"], role).await?.ok()?;
        let role = format!("--role={}", role.rsplit('/').next().unwrap_or_default());
        let account = format!("--serviceaccount={namespace}:{name}");
        case.kubectl(&["create", "rolebinding", name, &role, &account]).await?.ok()?;
        let token = case.kubectl(&["create", "token", name]).await?.ok()?;

        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("ctl-{namespace}-{name}"));
        std::fs::create_dir_all(&folder)?;
        let view = case.kubectl(&["config", "view", "--raw", "--minify", "--flatten", "-o", "json"]).await?.ok()?;
        let mut config: Value = serde_json::from_str(&view)?;
        *config.pointer_mut("/users/0/user").ok_or("a kubeconfig with a user")? = json!({"token": token});
        std::fs::write(folder.join("config"), config.to_string())?;
        let plugin = folder.join("kubectl-hello");
        if !plugin.exists() {
            std::fs::copy(suite.binary().await?, &plugin)?;
        }
        let tools = suite.cluster().kubeconfig().with_file_name("bin");
        let path = format!("PATH={}:{}:/usr/bin:/bin", folder.display(), tools.display());
        Ok(Self { folder, path, namespace })
    }

    /// `kubectl hello` with these arguments.
    async fn run(&self, arguments: &[&str], input: &str) -> Result<Said> {
        let config = format!("KUBECONFIG={}", self.folder.join("config").display());
        let mut all = vec![config.as_str(), &self.path, "kubectl", "hello", "-n", &self.namespace];
        all.extend(arguments);
        run(2 * SOON, Path::new("env"), all, input).await
    }

    async fn says(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments, "").await?.ok().map_err(|error| format!("{arguments:?}: {error}").into())
    }

    async fn refused(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments, "").await?.refused()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // Copies of the binary are large.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
