"""Passwords that AWS signs: the login to an RDS server by IAM, with a token of its own for every connection."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.core.secret import mask
from penstock.errors import ExtraMissing, SourceUnreachable, TokenRefused

if TYPE_CHECKING:
    from penstock.sources.postgres.conninfo import Where
    from penstock.sources.postgres.options import PostgresOptions

# One that is not told would wait for minutes, at every start of a flow.
_PATIENCE = {"connect_timeout": 10, "read_timeout": 10, "retries": {"total_max_attempts": 3}}
_ENDPOINT = re.compile(r"\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.rds\.amazonaws\.com(?:\.cn)?\.?$", re.IGNORECASE)


def region_of(host: str) -> str | None:
    """The region that an RDS host name carries, if it is one."""
    found = _ENDPOINT.search(host)
    return found[1].lower() if found else None


def may_know_region(hosts: str) -> bool:
    """Whether a region can be had without being asked for: from the hosts' names or from what AWS's library reads."""
    config = os.environ.get("AWS_CONFIG_FILE") or Path.home() / ".aws/config"
    given = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return bool(given) or Path(config).exists() or all(region_of(host) for host in hosts.split(","))


@dataclass(frozen=True)
class RdsIam:
    """Who asks AWS for tokens; plain data, so that the capture process can ask by itself."""

    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    role_external_id: str | None = None
    endpoint: str | None = None

    @classmethod
    def of(cls, options: PostgresOptions) -> Self | None:
        """What the options ask for; None for a flow that logs in by itself."""
        if not options.aws_rds_iam:
            return None
        return cls(
            region=options.aws_region,
            profile=options.aws_profile,
            role_arn=options.aws_role_arn,
            role_session_name=options.aws_role_session_name,
            role_external_id=options.aws_role_external_id,
            endpoint=options.aws_endpoint,
        )

    @classmethod
    def from_data(cls, data: Mapping[str, str | None] | None) -> Self | None:
        """What `to_data` described."""
        return cls(**data) if data is not None else None

    def to_data(self) -> dict[str, str | None]:
        """Plain data for the capture's recipe; holds no secret."""
        return asdict(self)

    def mint(self, where: Where) -> str:
        """A new token that lets `where.user` log in there within the next 15 minutes."""
        if where.host.startswith(("/", "@")):
            raise TokenRefused(
                "aws_rds_iam needs the name of the RDS server, but the dsn leads to a local socket.",
                remedy="Put the endpoint's host name into the source's dsn.",
            )
        try:
            import botocore.session
            from botocore.config import Config
        except ModuleNotFoundError as error:
            raise ExtraMissing(
                "aws_rds_iam needs the AWS library, which is not installed", remedy="Run `pip install 'penstock[aws]'`."
            ) from error
        with _translated():
            session = botocore.session.Session(profile=self.profile)
            region = self.region or region_of(where.host) or session.get_config_variable("region")
            if not region:
                raise TokenRefused(
                    f"The AWS region of {where.host} is not known.", remedy="Set `aws_region` in the source's options."
                )
            if self.role_arn:
                session = self._assume(session, region, Config(**_PATIENCE))
            client = session.create_client("rds", region_name=region)
            token = client.generate_db_auth_token(DBHostname=where.host, Port=where.port, DBUsername=where.user, Region=region)
            return str(token)

    def _assume(self, session: Any, region: str, config: Any) -> Any:
        """A session with credentials of the role, asked for anew, so that they never run out."""
        import botocore.session

        sts = session.create_client("sts", region_name=region, endpoint_url=self.endpoint, config=config)
        asked = {"RoleArn": self.role_arn, "RoleSessionName": self.role_session_name or "penstock"}
        if self.role_external_id:
            asked["ExternalId"] = self.role_external_id
        found = sts.assume_role(**asked)["Credentials"]
        assumed = botocore.session.Session(profile=self.profile)
        assumed.set_credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
        return assumed


@contextmanager
def _translated() -> Iterator[None]:
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        if "Throttl" in code or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
            raise SourceUnreachable(f"AWS could not give the role now ({code}).", remedy="The worker goes on trying.") from error
        raise TokenRefused(
            f"AWS refused to let the role be assumed: {mask(str(error)).rstrip('.')}.",
            remedy="Check aws_role_arn, aws_role_external_id and the role's trust policy.",
            aws=code,
        ) from error
    except (exceptions.HTTPClientError, exceptions.EndpointConnectionError) as error:
        raise SourceUnreachable(
            f"AWS did not answer when it was asked for the role: {mask(str(error)).rstrip('.')}.",
            remedy="Check `aws_endpoint`, the network and the proxy settings; the worker goes on trying.",
        ) from error
    except exceptions.BotoCoreError as error:
        raise TokenRefused(
            f"No token could be signed for the login: {mask(str(error)).rstrip('.')}.",
            remedy="Give AWS credentials by `aws_profile`, the environment or the machine's role.",
        ) from error
