#!/usr/bin/env python3
"""Measures becket's memory for unfinished handshakes and established connections, and the memory that remains after they close.

    bench/memory.py target/dist/becket

Starts becket with one listener that requires client certificates and with all limits at their defaults. Prints its resident
memory: at the start; with 9 400 handshakes that stop in the middle of the client's certificates; after these clients close; and
the latter two for established connections. Clients connect from many addresses of 127.0.0.0/8. Needs Linux, openssl, and 20 000
file descriptors.
"""
import os, resource, socket, ssl, struct, subprocess, sys, tempfile, time

MANY = 9_400
# Names in the client certificate, so that its size is just below `limits.certificate-chain`.
NAMES = 860


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


def certificates():
    """Create an authority, a server certificate, and a client certificate of nearly 16 KiB."""
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    names = ",".join(f"DNS:{i:04}.example.org" for i in range(NAMES))
    run("openssl", "req", "-x509", *ec, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, sans in ("site", "DNS:localhost"), ("client", names):
        run("openssl", "req", "-x509", *ec, "-subj", f"/CN={name}", "-CA", "ca.pem", "-CAkey", "ca.key", "-addext",
            f"subjectAltName={sans}", "-addext", "basicConstraints=CA:FALSE", "-keyout", f"{name}.key", "-out", f"{name}.crt")
    with open("site.pem", "w") as bundle:
        bundle.write(open("site.crt").read() + open("site.key").read())


def context(version):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.minimum_version = tls.maximum_version = version
    tls.load_cert_chain("client.crt", "client.key")
    return tls


def client(number, tls, keep_back):
    """Make a handshake, without the last `keep_back` bytes of the second flight; complete it if `keep_back` is 0."""
    sock = socket.socket()
    sock.bind((f"127.1.{number // 50 % 250}.{1 + number // 12_500}", 0))
    sock.connect(("127.0.0.1", PORT))
    sock.settimeout(60)
    # The client closes with RST, so that neither side waits for the other.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    both = tls.wrap_bio(inward, outward, server_hostname="localhost")
    while True:
        try:
            both.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        flight = outward.read()
        if len(flight) > 4_000 and keep_back:
            sock.sendall(flight[:-keep_back])
            return sock
        sock.sendall(flight)
        if done:
            return sock, both
        inward.write(sock.recv(65_536))


def resident(pid):
    status = open(f"/proc/{pid}/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def settled(pid):
    """Return the resident memory when it no longer falls."""
    last = resident(pid)
    while True:
        time.sleep(15)
        now = resident(pid)
        if now > last - 0.5:
            return now
        last = now


def main(becket):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        global PORT
        PORT = free.getsockname()[1]
    backend = socket.create_server(("127.0.0.9", 0), backlog=4_096)
    open("becket.toml", "w").write(f"""
[[listener]]
name = "web"
bind = ["127.0.0.1:{PORT}"]
certificates = ["site.pem"]
policy = "strict"
backend = "app"
[[policy]]
name = "strict"
client-certificates = "required"
client-ca = "ca.pem"
[[backend]]
name = "app"
server = [{{ address = "127.0.0.9:{backend.getsockname()[1]}" }}]
[timeouts]
handshake = "10m"
[process]
workers = 2
""")
    process = subprocess.Popen([becket, "run", "--config", "becket.toml"], stderr=open("log", "w"))
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    print(f"at the start: {settled(process.pid):.0f} MB")
    for name, version, keep_back in [
        ("unfinished handshakes, TLS 1.3", ssl.TLSVersion.TLSv1_3, 200),
        ("unfinished handshakes, TLS 1.2", ssl.TLSVersion.TLSv1_2, 60),
        ("established connections", ssl.TLSVersion.TLSv1_3, 0),
    ]:
        tls = context(version)
        kept = [client(number, tls, keep_back) for number in range(MANY)]
        time.sleep(2)
        print(f"{MANY} {name}: {resident(process.pid):.0f} MB", end="", flush=True)
        kept.clear()
        print(f"; after they close: {settled(process.pid):.0f} MB")
    process.kill()


if __name__ == "__main__":
    program = os.path.abspath(sys.argv[1])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        certificates()
        main(program)
