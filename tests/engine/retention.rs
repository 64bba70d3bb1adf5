//! What the retention removes from a real archive, and that what it keeps can be restored.

use std::path::PathBuf;
use std::sync::Arc;

use hello_operator::agent::archive::Archive;
use hello_operator::agent::keep;
use hello_operator::agent::restore::restore;
use hello_operator::api::config::RestoreOrder;
use hello_operator::backup::layout::{Segment, SegmentSize};
use hello_operator::core::backup::Policy;
use hello_operator::engine::postgres::settings::Archiving;

use super::backup::{ROOT, Store, archived, back_up, primary, rows};
use super::world::isolated;

#[test]
fn the_oldest_backups_go_with_their_wal_and_each_that_is_kept_can_be_restored() {
    isolated("retention::the_oldest_backups_go_with_their_wal_and_each_that_is_kept_can_be_restored", async |world| {
        let store = Store::new(&world, "db-1");
        let (instance, session) = primary(&world, &store).await;
        session.run("a table", "CREATE TABLE t(v text)").await.unwrap();
        let mut taken = Vec::new();
        for number in 1..=4 {
            session.run("rows", &format!("INSERT INTO t VALUES ('row {number}')")).await.unwrap();
            archived(&store, &session).await;
            taken.push(back_up(&world, &store, &instance).await.unwrap());
        }
        session.run("rows", "INSERT INTO t VALUES ('row 5')").await.unwrap();
        archived(&store, &session).await;

        let folder = store.mount.join(ROOT);
        let wal = |position| -> PathBuf {
            let segment = Segment::of(1, position, SegmentSize::default());
            folder.join("wal/00000001").join(format!("{segment}.zst"))
        };
        let there = |at: usize| folder.join("base").join(&taken[at].backup_id).join("manifest.json").exists();
        let two = Policy { keep_last: Some(2), ..Policy::default() };
        // One that is being taken began where the second did: its WAL stays as long as that.
        let report = keep::look(&store.archive, &two, &[taken[1].start_lsn]).await;
        assert_eq!((report.error, report.backups.len()), (None, 2));
        assert_eq!([0, 1, 2, 3].map(there), [false, false, true, true]);
        assert!(!wal(taken[0].start_lsn).exists() && wal(taken[1].start_lsn).exists());
        let mut report = keep::look(&store.archive, &two, &[]).await;
        // Listed by their ids, which are of a second: two of one second are listed in any order.
        report.backups.sort_by(|a, b| a.started_at.cmp(&b.started_at));
        assert_eq!(report.backups, taken[2..]);
        assert!(!wal(taken[1].start_lsn).exists() && wal(taken[2].start_lsn).exists());
        assert_eq!(report.recoverable_from, Some(taken[2].stopped_at.clone()));

        let restored = async |name: &str, order: RestoreOrder| {
            let mut target = world.instance(name);
            let wish = store.restore(&world, order);
            restore(&world.processes, &store.archive, &target.layout, &wish, &Arc::default(), &mut |_| {})
                .await
                .unwrap();
            rows(&world, &mut target, Archiving::none(), "t").await
        };
        let id = |at: usize| Some(taken[at].backup_id.clone());
        let all = ["row 1", "row 2", "row 3", "row 4", "row 5"];
        assert_eq!(restored("from-third", RestoreOrder { backup_id: id(2), ..store.order() }).await, all);
        assert_eq!(restored("from-fourth", RestoreOrder { backup_id: id(3), ..store.order() }).await, all);
        // The first moment that can be restored is the one that is told.
        let first = RestoreOrder { target_time: report.recoverable_from, ..store.order() };
        assert_eq!(restored("first", first).await, all[..3]);
    });
}

/// An agent that is asked again, because nobody heard that it was done, takes nothing twice.
#[test]
fn a_backup_that_is_there_already_is_not_taken_again() {
    isolated("retention::a_backup_that_is_there_already_is_not_taken_again", async |world| {
        let store = Store::new(&world, "db-1");
        let (instance, _session) = primary(&world, &store).await;
        let first = back_up(&world, &store, &instance).await.unwrap();
        let again = super::backup::back_up_for(&world, &store, &instance, &first.requested_by).await.unwrap();
        assert_eq!(again, first);
        assert_eq!(keep::look(&store.archive as &Arc<Archive>, &Policy::default(), &[]).await.backups, [first]);
    });
}
