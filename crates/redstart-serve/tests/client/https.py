"""Asks by HTTPS: one path per line; writes the status, the certificate's hash and the version of TLS as JSON."""

import hashlib
import http.client
import json
import ssl
import sys

host, port, authority = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for line in sys.stdin:
    path = line.strip()
    try:
        context = ssl.create_default_context(cafile=authority)
        connection = http.client.HTTPSConnection(host, port, context=context, timeout=60)
        connection.request("GET", path)
        certificate = connection.sock.getpeercert(binary_form=True)
        version = connection.sock.version()
        reply = connection.getresponse()
        reply.read()
        answer = {
            "status": reply.status,
            "certificate": hashlib.sha256(certificate).hexdigest(),
            "version": version,
        }
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        answer = {"error": type(error).__name__}
    print(json.dumps(answer), flush=True)
