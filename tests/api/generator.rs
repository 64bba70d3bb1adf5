//! Specs of HelloOperators, generated.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Map, Value, json};

/// Makes specs that are right, nearly right, or wrong.
pub struct Generator(pub StdRng);

impl Generator {
    /// Mostly one of the good ones.
    fn one(&mut self, good: &[Value], bad: &[Value]) -> Value {
        let from = if self.0.random_bool(0.93) { good } else { bad };
        from.choose(&mut self.0).cloned().unwrap_or(Value::Null)
    }

    fn maybe(&mut self, fields: &mut Map<String, Value>, name: &str, value: impl FnOnce(&mut Self) -> Value) {
        if self.0.random_bool(0.4) {
            fields.insert(name.into(), value(self));
        }
    }

    fn group(&mut self, fill: impl FnOnce(&mut Self, &mut Map<String, Value>)) -> Value {
        let mut fields = Map::new();
        fill(self, &mut fields);
        Value::Object(fields)
    }

    pub fn name(&mut self) -> String {
        let good = ["db", "my-helloworld", "a", "a--b", "x9", "abcdefghijabcdefghijabcdefghijabcdefghijabcde"];
        let bad = ["my.db", "1db", "9", "abcdefghijabcdefghijabcdefghijabcdefghijabcdef"];
        let from: &[&str] = if self.0.random_bool(0.95) { &good } else { &bad };
        (*from.choose(&mut self.0).unwrap()).to_owned()
    }

    fn version(&mut self) -> Value {
        self.one(
            &[json!(15), json!(16), json!(17), json!(18), json!("15"), json!("17"), json!("18")],
            &[json!(14), json!(19), json!(-17), json!("017"), json!("17 "), json!(""), json!("17.2"), json!("latest")],
        )
    }

    fn size(&mut self) -> Value {
        let good = [
            "1Gi",
            "2Gi",
            "32Mi",
            "33554432",
            "1.5Gi",
            ".5Gi",
            "1.Gi",
            "+1Gi",
            "1e9",
            "1E9",
            "5e8",
            "1G",
            "34M",
            "1Ti",
            "16Ei",
            "1e30",
            "40000000.5",
            "40000000.2",
            "2E",
            "1Ei",
            "7Ei",
            "33554432000m",
            "0.04G",
            "1024Mi",
            "10e8",
            "1e+9",
            "0100Gi",
            "33554432k",
        ];
        let bad = [
            "31Mi",
            "33554431.5",
            "33554431",
            "1k",
            "0",
            "-1Gi",
            "1 Gi",
            " 1Gi",
            "",
            "Gi",
            "1GiB",
            "1gi",
            "1K",
            "much",
            "1e",
            "1.2.3Gi",
            "100m",
            "1e-9",
            "0x40000000",
            "1_000Mi",
            "١Gi",
            "--1Gi",
            "1Gi ",
            "1n",
            "5u",
            "inf",
            "1e1.5",
            ".",
            "+",
            "1ee9",
        ];
        match self.0.random_range(0..20) {
            0 => json!(*[33_554_432_i64, 1 << 40, i64::from(i32::MAX)].choose(&mut self.0).unwrap()),
            1 => json!(*[33_554_431_i64, 0, -1].choose(&mut self.0).unwrap()),
            2 => json!(bad.choose(&mut self.0).unwrap()),
            _ => json!(good.choose(&mut self.0).unwrap()),
        }
    }

    fn parameters(&mut self) -> Value {
        let good = ["work_mem", "shared_buffers", "auto_explain.log_min_duration", "a", "max_connections", "x1_"];
        let bad = [
            "port",
            "fsync",
            "wal_level",
            "ssl_ca_file",
            "Work_Mem",
            "work-mem",
            "a.b.c",
            ".a",
            "a.",
            "1a",
            "_a",
            "a b",
            "",
            "a.1",
            "ä",
            "synchronous_standby_names",
        ];
        let values = [json!(1), json!("64MB"), json!("on"), json!(-1), json!("")];
        self.group(|this, fields| {
            for _ in 0..this.0.random_range(0..4) {
                let from: &[&str] = if this.0.random_bool(0.96) { &good } else { &bad };
                let key = (*from.choose(&mut this.0).unwrap()).to_owned();
                fields.insert(key, values.choose(&mut this.0).unwrap().clone());
            }
        })
    }

    fn hba(&mut self) -> Value {
        let line = self.one(
            &[
                json!("host all all all md5"),
                json!("local\tall all peer"),
                json!("hostnogssenc a b c d"),
                json!("host "),
            ],
            &[
                json!("host"),
                json!("all all"),
                json!(" host all"),
                json!("host all\nhost"),
                json!("hostx all"),
                json!("Host all"),
                json!("host all\r"),
            ],
        );
        json!([line])
    }

    fn identifier(&mut self) -> Value {
        self.one(
            &[json!("app"), json!("my_app"), json!("_x"), json!("a1"), json!("pgx"), json!("postgres_")],
            &[
                json!("App"),
                json!("1a"),
                json!("my-app"),
                json!("pg_app"),
                json!("postgres"),
                json!("public"),
                json!("ä"),
                json!(""),
            ],
        )
    }

    fn ranges(&mut self) -> Value {
        let range = self.one(
            &[
                json!("10.0.0.0/8"),
                json!("0.0.0.0/0"),
                json!("10.1.2.3/8"),
                json!("::/0"),
                json!("fe80::1/64"),
                json!("2001:db8::/128"),
                json!("::1.2.3.4/96"),
            ],
            &[
                json!("10.0.0.0"),
                json!("10.0.0.0/33"),
                json!("10.0.0/8"),
                json!("10.0.0.0/08"),
                json!("10.0.0.0/+8"),
                json!("010.0.0.0/8"),
                json!("::/129"),
                json!("fe80::1%eth0/64"),
                json!("x/8"),
                json!("/8"),
                json!("10.0.0.0/"),
                json!(" 10.0.0.0/8"),
                json!("::1.2.3.4.5/96"),
                json!("::ffff:1.2.3.4/96"),
                json!("::ffff:102:304/96"),
            ],
        );
        json!([range])
    }

    fn id(&mut self) -> Value {
        self.one(
            &[json!(1), json!(26), json!(999), json!(2_147_483_647)],
            &[json!(0), json!(-1), json!(2_147_483_648_i64)],
        )
    }

    fn failover(&mut self) -> Value {
        self.group(|this, failover| {
            this.maybe(failover, "enabled", |this| this.one(&[json!(true), json!(false)], &[json!("no")]));
            let mut number = |name: &str, good: &[i64], bad: &[i64]| {
                let values = |of: &[i64]| of.iter().map(|n| json!(n)).collect::<Vec<_>>();
                this.maybe(failover, name, |this| this.one(&values(good), &values(bad)));
            };
            number("leaseDurationSeconds", &[15, 30, 300], &[8, 12, 13, 7, 301, 0, -1]);
            number("renewDeadlineSeconds", &[10, 12, 9], &[5, 4, 13, 297, 298, -1]);
            number("retryPeriodSeconds", &[1, 2, 3, 4], &[5, 60, 61, 0, -1]);
            this.maybe(failover, "maxLagBytes", |this| {
                let bad = [json!(-1), json!("-1"), json!("much"), json!("-1n"), json!("")];
                this.one(&[json!(0), json!(16), json!("16Mi"), json!("0"), json!("1.5Gi"), json!("1n")], &bad)
            });
        })
    }

    fn destination(&mut self) -> Value {
        let path = |this: &mut Self| {
            this.one(
                &[json!("a"), json!("team/shop"), json!("/a/"), json!("a.b_c=d-e"), json!("..a")],
                &[json!(""), json!("a//b"), json!("../a"), json!("a/./b"), json!("a b"), json!("ä"), json!("..")],
            )
        };
        self.group(|this, fields| {
            if this.0.random_bool(0.85) {
                let bucket = this.one(&[json!("b")], &[json!(""), json!(7)]);
                let mut s3 = json!({"bucket": bucket});
                let fields_of_s3 = s3.as_object_mut().unwrap();
                this.maybe(fields_of_s3, "path", path);
                this.maybe(fields_of_s3, "region", |this| this.one(&[json!("eu-1")], &[json!("")]));
                this.maybe(fields_of_s3, "forcePathStyle", |_| json!(true));
                this.maybe(fields_of_s3, "endpoint", |this| {
                    this.one(
                        &[json!("https://minio:9000"), json!("http://10.0.0.1")],
                        &[
                            json!("minio"),
                            json!("https://minio/x"),
                            json!("https://u@minio"),
                            json!("https://"),
                            json!(""),
                        ],
                    )
                });
                this.maybe(fields_of_s3, "credentials", |this| {
                    this.one(
                        &[json!({"secret": "s"}), json!({"secret": "s", "accessKeyId": "k", "sessionToken": "t"})],
                        &[json!({"secret": ""}), json!({}), json!({"secret": "s", "sessionToken": ""})],
                    )
                });
                fields.insert("s3".into(), s3);
            }
            for (name, value) in [
                ("gcs", json!({"bucket": "b", "credentials": {"name": "n", "key": "k"}})),
                ("azure", json!({"account": "a", "container": "c"})),
                ("volume", json!({"claim": "c"})),
            ] {
                if this.0.random_bool(if fields.is_empty() { 0.5 } else { 0.03 }) {
                    let mut value = value;
                    this.maybe(value.as_object_mut().unwrap(), "path", path);
                    fields.insert(name.into(), value);
                }
            }
        })
    }

    fn cron(&mut self) -> Value {
        let good = ["0 3 * * *", "*/5 0-6,22 1 JAN-mar MON", "0  3 * *   0", "61 99 * * *", "0 0 30 2 *"];
        let bad = ["", "@daily", "0 3 * *", "0 3 * * * *", " 0 3 * * *", "0 3 * * * ", "0 3 * * #", "0\t3 * * *"];
        let value = |all: &[&str]| all.iter().map(|text| json!(text)).collect::<Vec<_>>();
        self.one(&value(&good), &value(&bad))
    }

    fn backup(&mut self) -> Value {
        self.group(|this, backup| {
            if this.0.random_bool(0.85) {
                backup.insert("destination".into(), this.destination());
                this.maybe(backup, "schedule", Self::cron);
                this.maybe(backup, "verify", |this| {
                    let mut verify = json!({"schedule": this.cron()});
                    let query = |this: &mut Self| this.one(&[json!("select 1")], &[json!("")]);
                    this.maybe(verify.as_object_mut().unwrap(), "query", query);
                    verify
                });
            } else if this.0.random_bool(0.1) {
                backup.insert("schedule".into(), this.cron());
            }
            this.maybe(backup, "timeZone", |this| this.one(&[json!("Europe/Zurich"), json!("Mars")], &[json!("")]));
            this.maybe(backup, "suspend", |_| json!(true));
            this.maybe(backup, "walArchive", |_| json!(false));
            this.maybe(backup, "archiveTimeoutSeconds", |this| {
                this.one(&[json!(10), json!(3600)], &[json!(9), json!(3601), json!(-1)])
            });
            this.maybe(backup, "maxBytesPerSecond", |this| {
                let good = [json!("50M"), json!("64Ki"), json!(65536), json!("65535.5"), json!("1e6")];
                this.one(&good, &[json!("1k"), json!(65535), json!("-1"), json!("much"), json!("65535"), json!("")])
            });
            this.maybe(backup, "retention", |this| {
                this.group(|this, retention| {
                    this.maybe(retention, "keepLast", |this| {
                        this.one(&[json!(1), json!(1000)], &[json!(0), json!(1001), json!(-7)])
                    });
                    this.maybe(retention, "keepFor", |this| {
                        let good = [json!("30d"), json!("1s"), json!("999999999w")];
                        this.one(
                            &good,
                            &[json!(""), json!("0d"), json!("030d"), json!("30"), json!("1y"), json!("1 d")],
                        )
                    });
                })
            });
        })
    }

    fn restore(&mut self) -> Value {
        self.group(|this, restore| {
            match this.0.random_range(0..20) {
                0 => {}
                1 => {
                    restore.insert("backup".into(), json!("nightly"));
                    restore.insert("source".into(), this.destination());
                }
                2..10 => drop(restore.insert("backup".into(), this.one(&[json!("nightly")], &[json!("")]))),
                _ => drop(restore.insert("source".into(), this.destination())),
            }
            let targets: [(&str, &[&str], &[&str]); 3] = [
                (
                    "targetTime",
                    &["2026-11-30T10:01:00Z", "2026-11-30 10:01:00.123456+14:00", "2026-02-31T00:00:00-01:30"],
                    &[
                        "2026-11-30",
                        "2026-11-30T10:01:00",
                        "2026-13-01T00:00:00Z",
                        "2026-11-30T24:00:00Z",
                        "2026-11-30T10:01:00+15:00",
                    ],
                ),
                ("targetLsn", &["0/3000148", "FFFFFFFF/a"], &["0", "0/", "/1", "123456789/0", "0/g", "+1/1"]),
                ("targetName", &["before"], &[""]),
            ];
            for (name, good, bad) in targets {
                if this.0.random_bool(0.2) {
                    let value = |all: &[&str]| all.iter().map(|text| json!(text)).collect::<Vec<_>>();
                    let value = this.one(&value(good), &value(bad));
                    restore.insert(name.into(), value);
                }
            }
            this.maybe(restore, "targetTimeline", |this| this.one(&[json!(1), json!(7)], &[json!(0), json!(-1)]));
            this.maybe(restore, "backupId", |this| this.one(&[json!("20261130T030000Z-0badcafe")], &[json!("")]));
        })
    }

    fn primary(&mut self, name: &str) -> Value {
        let good = [json!(format!("{name}-1")), json!(format!("{name}-9"))];
        let bad = [
            json!(name),
            json!(format!("{name}-0")),
            json!(format!("{name}-10")),
            json!(format!("{name}-01")),
            json!(format!("{name}-x")),
            json!("1"),
            json!(""),
            json!(7),
        ];
        self.one(&good, &bad)
    }

    pub fn spec(&mut self, name: &str) -> Value {
        self.group(|this, spec| {
            this.maybe(spec, "failover", Self::failover);
            this.maybe(spec, "backup", Self::backup);
            if this.0.random_bool(0.2) {
                spec.insert("bootstrap".into(), json!({"restore": this.restore()}));
            }
            this.maybe(spec, "primary", |this| this.primary(name));
            this.maybe(spec, "engine", |_| json!("postgresql"));
            this.maybe(spec, "version", Self::version);
            this.maybe(spec, "instances", |this| {
                this.one(&[json!(1), json!(2), json!(3), json!(5), json!(9)], &[json!(0), json!(-1), json!(10)])
            });
            this.maybe(spec, "uid", Self::id);
            this.maybe(spec, "gid", Self::id);
            this.maybe(spec, "image", |_| json!("registry.local/postgres:17"));
            this.maybe(spec, "state", |this| {
                this.one(&[json!("Running"), json!("Paused"), json!("Hibernated")], &[json!("Off")])
            });
            this.maybe(spec, "storage", |this| {
                this.group(|this, storage| {
                    this.maybe(storage, "size", Self::size);
                    this.maybe(storage, "walSize", Self::size);
                    this.maybe(storage, "storageClassName", |this| {
                        this.one(&[json!("fast"), json!("slow")], &[json!(7)])
                    });
                    this.maybe(storage, "onDelete", |this| {
                        this.one(&[json!("Retain"), json!("Delete")], &[json!("Keep")])
                    });
                })
            });
            this.maybe(spec, "replication", |this| {
                this.group(|this, replication| {
                    this.maybe(replication, "durability", |this| {
                        this.one(&[json!("Quorum"), json!("Async"), Value::Null], &[json!("Some")])
                    });
                    this.maybe(replication, "syncReplicas", |this| {
                        this.one(&[json!(1), json!(1), json!(2), json!(3), json!(8)], &[json!(0), json!(9), json!(-1)])
                    });
                })
            });
            this.maybe(spec, "postgresql", |this| {
                this.group(|this, postgresql| {
                    this.maybe(postgresql, "parameters", Self::parameters);
                    this.maybe(postgresql, "hba", Self::hba);
                    this.maybe(postgresql, "database", Self::identifier);
                    this.maybe(postgresql, "owner", Self::identifier);
                })
            });
            this.maybe(spec, "services", |this| {
                let rw = this.group(|this, rw| this.maybe(rw, "loadBalancerSourceRanges", Self::ranges));
                json!({"rw": rw, "ro": {"type": "NodePort"}})
            });
        })
    }
}
