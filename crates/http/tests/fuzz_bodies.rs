//! Runs the body of the fuzz target without a fuzzer: on real requests, mutated by a seeded generator.

#[path = "../../../fuzz/src/http_request.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod http_request;
#[path = "../../../fuzz/src/mutations.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod mutations;

#[test]
fn requests_survive_mutation() {
    let requests = [
        "\x05GET /a/b.css?v=1 HTTP/1.1\r\nHost: www.example.org\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\r\n",
        "\x35HEAD http://[::1]:8443/%20a/../b HTTP/1.0\r\nConnection: keep-alive\r\nIf-None-Match: \"1-2\", W/\"x\"\r\n\r\n",
        "\x15GET /.well-known/x HTTP/1.1\r\nHost: a\r\nRange: bytes=10-20\r\nIf-Range: \"1-2\"\r\n\r\nGET / HTTP/1.1\r\n",
        "\x15GET // HTTP/1.1\r\nHost: a:1\r\nRange: bytes=-5\r\nIf-Modified-Since: Tue, 14 Nov 2023 22:13:20 GMT\r\n\r\n",
        "\x25POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    ];
    let inputs: Vec<Vec<u8>> = requests.map(|request| request.as_bytes().to_vec()).into();
    assert_eq!(http_request::run(&inputs[0]), 1);
    mutations::run_on_mutations(&inputs, http_request::run);
}
