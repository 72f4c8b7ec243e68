//! FUNCTION, FCALL and the first line of scripts.

use bytes::Bytes;
use redstart_engine::{Compat, Engine, Reply, Session};
use redstart_testkit::Kind;

use crate::{Server, Wire, compare, sorted, split};

#[test]
fn libraries_are_loaded_and_refused_alike() {
    compare(
        r##"
        FUNCTION FLUSH
        FUNCTION LOAD "return 1"
        FUNCTION LOAD "#!lua name=x"
        FUNCTION LOAD "#!lua\nreturn 1"
        FUNCTION LOAD "#!js name=x\nreturn 1"
        FUNCTION LOAD "#!lua name=a-b\nreturn"
        FUNCTION LOAD "#!lua name=\nreturn"
        FUNCTION LOAD "#!lua name=a name=b\nx"
        FUNCTION LOAD "#!lua nme=a\nx"
        FUNCTION LOAD "#!\nx"
        FUNCTION LOAD "#! name=x\nx"
        FUNCTION LOAD "#!lua NAME=foo\nreturn"
        FUNCTION LOAD "#!lua name=\"foo\"\nreturn"
        FUNCTION LOAD "#!lua \"name=foo\nreturn"
        FUNCTION LOAD "#!LUA name=foo\nreturn"
        FUNCTION LOAD "#!lua name=l\nreturn 1"
        FUNCTION LOAD "#!lua name=l\nx x"
        FUNCTION LOAD "#!lua name=l\n\n\nlocal x = nil x()"
        FUNCTION LOAD "#!lua name=l\nerror('boom')"
        FUNCTION LOAD "#!lua name=l\npcall(redis.register_function)"
        FUNCTION LOAD "#!lua name=l\nreturn string"
        FUNCTION LOAD "#!lua name=l\nreturn _G"
        FUNCTION LOAD "#!lua name=l\nredis.call('get', 'x')"
        FUNCTION LOAD "#!lua name=l\nredis.setresp(3)"
        FUNCTION LOAD "#!lua name=l\nreturn redis.nosuch"
        FUNCTION LOAD "#!lua name=l\nredis.x = 1"
        FUNCTION LOAD "#!lua name=l\nx = 1"
        FUNCTION LOAD "#!lua name=l\nfunction f() end"
        FUNCTION LOAD "#!lua name=l\nreturn KEYS"
        FUNCTION LOAD "#!lua name=l\nredis.register_function()"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('a')"
        FUNCTION LOAD "#!lua name=l\nredis.register_function(nil, function() end)"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('f', 1)"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('f', 1, 2)"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name='f'}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{callback=function() end}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name={}, callback=function() end}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name='f', callback=1}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name='f', callback=function() end, flags='x'}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name='f', callback=function() end, flags={'x'}}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name='f', callback=function() end, flags={'no-writes', 1}}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name='f', callback=function() end, description=function() end}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{function_name='f', callback=function() end, foo=1}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{'a'}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function{[{}]='a'}"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('f-x', function() end)"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('', function() end)"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('f', function() end) redis.register_function('f', function() end)"
        ~FUNCTION LIST WITHCODE
        FUNCTION LOAD "#!lua name=n\nredis.register_function(1, function() return 'one' end)"
        FCALL 1 0
        FUNCTION LOAD "#!lua name=fl\nredis.register_function{FUNCTION_NAME='f', Callback=function() end, flags={x='no-writes'}}"
        FUNCTION LOAD "#!lua name=up\nredis.register_function{function_name='g', callback=function() end, flags={'NO-WRITES', 'Allow-OOM'}, description=5}"
        ~FUNCTION LIST
        FUNCTION LOAD "#!lua name=slow\nwhile true do end"
        FUNCTION FLUSH
        FUNCTION LOAD "#!lua name=l\nredis.register_function('f', function() return 1 end)"
        FUNCTION LOAD "#!lua name=l\nredis.register_function('f', function() return 1 end)"
        FUNCTION LOAD "#!lua name=m\nredis.register_function('F', function() return 1 end)"
        FUNCTION LOAD REPLACE "#!lua name=m\nredis.register_function('F', function() return 1 end)"
        FUNCTION LOAD REPLACE "#!lua name=l\nredis.register_function('f', function() return 2 end)"
        FCALL f 0
        # A library that cannot be loaded replaces nothing.
        FUNCTION LOAD REPLACE "#!lua name=l\nredis.register_function('f', function() return 3 end) redis.register_function('g', 1)"
        FCALL f 0
        FCALL F 0
        FCALL g 0
        FUNCTION LOAD REPLACE REPLACE "#!lua name=l\nredis.register_function('g', function() return 4 end)"
        FCALL f 0
        FCALL g 0
        FUNCTION LOAD FOO "#!lua name=l\nredis.register_function('f', function() return 2 end)"
        FUNCTION LOAD replace
        FUNCTION LOAD
        FUNCTION DELETE x
        FUNCTION DELETE L
        FUNCTION DELETE l
        FCALL g 0
        FUNCTION DELETE
        FUNCTION
        FUNCTION NOSUCH
        FUNCTION FLUSH x
        FUNCTION FLUSH ASYNC x
        FUNCTION FLUSH ASYNC
        FUNCTION FLUSH sync
        FUNCTION KILL
        FUNCTION STATS
        FUNCTION HELP
        FUNCTION LIST x
        FUNCTION LIST LIBRARYNAME
        FUNCTION LIST LIBRARYNAME * LIBRARYNAME x
        FUNCTION LIST WITHCODE WITHCODE
        FUNCTION LIST LIBRARYNAME * WITHCODE y
        "##,
    );
}

#[test]
fn functions_run_and_fail_alike() {
    compare(
        r##"
        FUNCTION FLUSH
        FUNCTION LOAD "#!lua name=l\nlocal r = redis\nlocal n = 0\nredis.register_function('at_load', function() return r.call('PING') end)\nredis.register_function('see', function(k, a, b) return {k, a, b} end)\nredis.register_function('keys', function() return KEYS end)\nredis.register_function('again', function() return redis.register_function('x', function() end) end)\nredis.register_function('boom', function() error('boom') end)\nredis.register_function('deep', function()\n local function f() error('deep') end\n f()\nend)\nredis.register_function('thrown', function() error({err='My text'}) end)\nredis.register_function('bad', function() return redis.call('incr', 'x', 'y') end)\nredis.register_function('caught', function() return redis.pcall('incr', 'x', 'y') end)\nredis.register_function('err', function() return {err='My x'} end)\nredis.register_function('map', function() redis.setresp(3) return redis.call('hgetall', 'h') end)\nredis.register_function('global', function() xx = 1 end)\nredis.register_function('set', function(k, a) return redis.call('set', k[1], a[1]) end)\nredis.register_function('count', function() n = n + 1 return n end)\nredis.register_function('names', function() local q = {} for k, v in pairs(redis) do q[#q + 1] = k end table.sort(q) local s = {} for k, v in pairs(_G) do s[#s + 1] = k end table.sort(s) return {q, s} end)"
        FUNCTION LOAD "#!lua name=ro\nredis.register_function{function_name='ro_set', flags={'no-writes'}, callback=function(k) return redis.call('set', k[1], 'b') end, description='some text'}\nredis.register_function{function_name='ro_get', flags={'no-writes', 'allow-oom', 'allow-stale', 'no-cluster', 'allow-cross-slot-keys'}, callback=function(k) return redis.call('get', k[1]) end, description='some text'}"
        ~FUNCTION LIST
        ~FUNCTION LIST LIBRARYNAME L* WITHCODE
        ~FUNCTION LIST LIBRARYNAME nosuch
        FUNCTION STATS
        HSET h a 1
        FCALL at_load 0
        FCALL see 1 k a
        FCALL see 0
        FCALL keys 1 k
        FCALL again 0
        FCALL boom 0
        FCALL deep 0
        FCALL thrown 0
        FCALL bad 0
        FCALL caught 0
        FCALL err 0
        FCALL map 0
        FCALL global 0
        FCALL set 1 k v
        GET k
        FCALL_RO set 1 k v
        FCALL ro_set 1 k
        FCALL_RO ro_set 1 k
        FCALL ro_get 1 k
        FCALL_RO ro_get 1 k
        FCALL count 0
        FCALL count 0
        FCALL names 0
        FCALL see x
        FCALL see 1
        FCALL see -1
        FCALL nosuch x
        FCALL see
        FCALL
        EVAL "return redis.call('fcall', 'see', 0)" 0
        EVAL "return redis.call('function', 'list')" 0
        MULTI
        FCALL count 0
        FCALL boom 0
        FCALL nosuch 0
        FUNCTION STATS
        FUNCTION DELETE l
        FCALL count 0
        EXEC
        SCRIPT FLUSH
        FCALL ro_get 1 k
        FLUSHALL
        FCALL ro_get 1 k
        COMMAND GETKEYS FCALL f 2 a b c
        COMMAND GETKEYS FCALL_RO f 1 a
        WATCH k
        @2 FCALL ro_get 1 k
        MULTI
        EXEC
        FUNCTION LOAD "#!lua name=w\nredis.register_function('w', function(k) return redis.call('set', k[1], 1) end)"
        WATCH k
        @2 FCALL w 1 k
        MULTI
        EXEC
        FUNCTION FLUSH
        "##,
    );
}

#[test]
fn the_first_line_of_scripts_is_read_alike() {
    compare(
        r##"
        EVAL "#!lua\nreturn 1" 0
        EVAL_RO "#!lua\nreturn 1" 0
        SCRIPT LOAD "#!lua\nreturn 1"
        EVAL "#!lua flags=\nreturn 1" 0
        EVAL "#!lua flags=no-writes\nreturn redis.call('set', 'a', 'b')" 0
        EVAL_RO "#!lua flags=no-writes\nreturn redis.call('set', 'a', 'b')" 0
        EVAL_RO "#!lua flags=no-writes\nreturn redis.call('get', 'a')" 0
        EVAL "#!lua flags=no-writes,\nreturn 1" 0
        EVAL "#!lua flags=NO-WRITES\nreturn 1" 0
        EVAL "#!lua flags=x\nreturn 1" 0
        SCRIPT LOAD "#!lua flags=x\nreturn 1"
        EVAL "#!lua x\nreturn 1" 0
        EVAL "#!js\nreturn 1" 0
        EVAL "#!\nreturn 1" 0
        EVAL "#!lua" 0
        EVAL "#! lua\nreturn 1" 0
        EVAL "#!lua flags=no-writes flags=allow-oom\nreturn 1" 0
        EVAL "#!lua  flags=allow-stale,no-cluster,allow-cross-slot-keys\nreturn 1" 0
        EVAL "#!LUA\nreturn 1" 0
        EVAL "#!lua Flags=no-writes\nreturn 1" 0
        EVAL "#!lua name=x\nreturn 1" 0
        EVAL "#!lua 'flags=no-writes'\nreturn redis.call('set', 'a', 'b')" 0
        EVAL "#!lua \"flags=\nreturn 1" 0
        EVAL "#!lua\nerror('line two')" 0
        "##,
    );
}

fn words(command: &str, payload: &Bytes, more: &str) -> Vec<Bytes> {
    let mut words = split(command);
    words.push(payload.clone());
    words.extend(split(more));
    words
}

fn payload(reply: Reply) -> Bytes {
    match reply {
        Reply::Bulk(payload) => payload,
        other => panic!("{other:?}"),
    }
}

fn ours(session: &mut Session, args: &[Bytes]) -> Reply {
    session.execute(args).into_reply().unwrap()
}

/// A dump of each side is restored by the other.
fn exchange(session: &mut Session, wire: &mut Wire) {
    let load = |name: &str, functions: &[&str]| -> Bytes {
        let register = |name: &&str| {
            format!("redis.register_function('{name}', function() return '{name}' end)\n")
        };
        let code: String = functions.iter().map(register).collect();
        format!("#!lua name={name}\n{code}").into()
    };
    let libraries = [
        load("one", &["a"]),
        load("two", &["b", "c"]),
        load("three", &["d", "e", "f"]),
    ];
    for library in &libraries {
        let args = words("FUNCTION LOAD", library, "");
        assert_eq!(ours(session, &args), wire.call(&args));
    }
    let list = split("FUNCTION LIST WITHCODE");
    let all = sorted(wire.call(&list));
    assert_eq!(sorted(ours(session, &list)), all);
    // One library only: the order of several is that of a hash table.
    for name in ["two", "three"] {
        let args = split(&format!("FUNCTION DELETE {name}"));
        assert_eq!(ours(session, &args), wire.call(&args));
    }
    let dump = split("FUNCTION DUMP");
    let single = payload(wire.call(&dump));
    assert_eq!(payload(ours(session, &dump)), single);
    for library in &libraries[1..] {
        ours(session, &words("FUNCTION LOAD", library, ""));
    }
    let dumped = payload(ours(session, &dump));
    assert_eq!(
        wire.call(&words("FUNCTION RESTORE", &dumped, "FLUSH")),
        Reply::OK
    );
    assert_eq!(sorted(wire.call(&list)), all);
    let theirs = payload(wire.call(&dump));
    ours(session, &split("FUNCTION FLUSH"));
    assert_eq!(
        ours(session, &words("FUNCTION RESTORE", &theirs, "")),
        Reply::OK
    );
    assert_eq!(sorted(ours(session, &list)), all);
    assert_eq!(ours(session, &split("FCALL f 0")), Reply::bulk("f"));
    refuse(session, wire, &single, &theirs);
    // A function of another library is in the way.
    for args in [
        split("FUNCTION DELETE one"),
        words("FUNCTION LOAD", &load("other", &["A"]), ""),
        words("FUNCTION RESTORE", &single, "REPLACE"),
        words("FUNCTION RESTORE", &theirs, "REPLACE"),
        split("FUNCTION DELETE other"),
        words("FUNCTION RESTORE", &single, "APPEND"),
    ] {
        assert_eq!(ours(session, &args), wire.call(&args), "{args:?}");
    }
    assert_eq!(sorted(ours(session, &list)), all);
    assert_eq!(sorted(wire.call(&list)), all);
}

/// What is refused changes nothing, and is refused alike.
fn refuse(session: &mut Session, wire: &mut Wire, single: &Bytes, several: &Bytes) {
    let empty = Bytes::new();
    let cut = single.slice(..single.len() - 3);
    let mut flipped = single.to_vec();
    flipped[4] ^= 1;
    let flipped = Bytes::from(flipped);
    for (payload, policy) in [
        (single, ""),
        (single, "APPEND"),
        (several, "append"),
        (single, "FOO"),
        (single, "FLUSH FLUSH"),
        (&empty, ""),
        (&cut, "FLUSH"),
        (&flipped, "REPLACE"),
    ] {
        let args = words("FUNCTION RESTORE", payload, policy);
        let (ours, theirs) = (ours(session, &args), wire.call(&args));
        assert!(ours.is_error(), "{policy}: {ours:?}");
        // Which of several libraries is named first is up to a hash table.
        let named = |reply: &Reply| {
            let mut text = format!("{reply:?}");
            for name in ["one", "two", "three"] {
                text = text.replace(name, "…");
            }
            text
        };
        assert_eq!(named(&ours), named(&theirs), "{policy}");
    }
    for policy in ["REPLACE", "replace"] {
        let args = words("FUNCTION RESTORE", single, policy);
        assert_eq!(ours(session, &args), wire.call(&args));
    }
}

#[test]
fn dumps_of_functions_go_from_one_to_the_other() {
    for (kind, compat) in [
        (Kind::Redis, Compat::Redis70),
        (Kind::Valkey, Compat::Valkey9),
    ] {
        let server = Server::start_kind(kind);
        let engine = Engine::builder().compat(compat).build().unwrap();
        exchange(&mut engine.session(), &mut server.connect());
    }
}
