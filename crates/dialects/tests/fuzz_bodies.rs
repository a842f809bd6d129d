//! Runs the bodies of the fuzz targets without a fuzzer, on seeded inputs, with any compiler.
//!
//! A failure prints the input; `cargo +nightly fuzz run` searches deeper.

#[path = "../../../fuzz/src/dialect.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod dialect;

use std::panic::catch_unwind;

use fastrand::Rng;

#[test]
fn a_configuration_of_another_program_survives_mutation() {
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    let hitch = "--config\0f\0-q\0a.pem\0\0frontend = \"[*]:443\"\nfrontend = { port = \"1\" pem-file = { cert = \"a\" }\n\
                 ciphers = \"HIGH:!RSA\" }\ntls-protos = TLSv1.2 TLSv1.0\nkeepalive = 7 # x\nwrite-proxy-v2 = on\n";
    let stud = "--config=f\0-t\0\0frontend = *,443\nbackend = [::1]:80\npem-file = \"a.pem\"\nwrite-proxy = on\nfoo = 1\n";
    let stunnel = "f\0\0include = parts\ncert = a.pem\n[x]\naccept = 1\nconnect = 2\nsslVersionMin = TLSv1\n[y]\nsni = x:*.b.test\n\
                   connect = 3\n[z]\nclient = yes\naccept = :::4\nconnect = a:5\nsocket = l:TCP_KEEPIDLE=3\n";
    let haproxy = "global\n maxconn 9\n user h\n log /dev/log local0 notice\ndefaults\n mode http\n timeout client 30s\nfrontend web\n bind :80\n \
                   bind *:443 ssl crt a.pem crt-list parts/1.conf alpn h2,http/1.1\n acl api ssl_fc_sni -i \"api.test\"\n use_backend b if api or { ssl_fc_alpn h2 }\n \
                   http-request redirect scheme https code 301 unless { ssl_fc }\n default_backend b\nbackend b\n balance leastconn\n option httpchk GET /up\n \
                   server one 10.0.0.1:80 check inter 500 weight 3 maxconn 4\n server two [::1]:81 check ssl verify none backup\n";
    let nginx = "user www;\nevents { worker_connections 9; }\nhttp {\n include parts/*.none;\n upstream u { least_conn; server 10.0.0.1:1 weight=2; server unix:/a.sock backup; }\n \
                 server { listen 80; return 301 https://$host$request_uri; }\n server { listen 443 ssl http2 default_server; server_name a.test .b.test; ssl_certificate \"a.crt\";\n \
                 ssl_certificate_key a.key; ssl_protocols TLSv1.3; location / { proxy_pass http://u; } location /x { root /y; } }\n}\nstream { map $ssl_preread_server_name $to {\n \
                 c.test 10.0.0.2:443; default 10.0.0.3:443; } server { listen 8443; ssl_preread on; proxy_pass $to; proxy_protocol on; } }\n";
    let mut read = 0;
    let programs = [hitch, stud, stunnel, haproxy, nginx];
    for (which, text) in programs.iter().enumerate() {
        let whole = [&[which as u8], text.as_bytes()].concat();
        for round in 0..500 {
            let mut input = whole.clone();
            for _ in 0..round.min(random.usize(..4)) {
                let at = random.usize(..input.len());
                match random.u8(..3) {
                    0 => input[at] = random.u8(..),
                    1 => drop(input.remove(at)),
                    _ => input.extend_from_within(at..),
                }
            }
            let result = catch_unwind(|| dialect::run(&input));
            read += result.unwrap_or_else(|_| panic!("failed on {}", input.escape_ascii()));
        }
    }
    assert!(read > 500, "only {read} were left as they were");
}
